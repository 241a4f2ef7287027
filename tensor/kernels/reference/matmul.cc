// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "crosshatch/tensor/kernels/reference/reference.h"

namespace crosshatch::reference {
namespace {

Reals ReadRuns(const void* data, DType dtype, int64_t offset,
               const KernelShape& shape,
               const std::array<int64_t, 2>& strides) {
  Reals values;
  for (int64_t at : Offsets(shape, strides.data())) {
    values.push_back(ReadElement(data, dtype, offset + at));
  }
  return values;
}

}  // namespace

Sums MatMul(const MatMulArgs& args) {
  const auto a = Offsets(args.batch, args.a.batch_strides);
  const auto b = Offsets(args.batch, args.b.batch_strides);
  const auto out = Offsets(args.batch, args.out.batch_strides);
  const auto alpha = static_cast<Real>(args.alpha);
  const auto beta = static_cast<Real>(args.beta);
  const auto k = static_cast<size_t>(args.k);
  Sums result;
  for (size_t batch = 0; batch < out.size(); ++batch) {
    // The rows of a, followed by the columns of b.
    const Reals rows =
        ReadRuns(args.a.data, args.dtype, a[batch], {2, {args.m, args.k}},
                 {args.a.row_stride, args.a.col_stride});
    const Reals columns =
        ReadRuns(args.b.data, args.dtype, b[batch], {2, {args.n, args.k}},
                 {args.b.col_stride, args.b.row_stride});
    for (int64_t i = 0; i < args.m; ++i) {
      for (int64_t j = 0; j < args.n; ++j) {
        const Real* const row = rows.data() + static_cast<size_t>(i) * k;
        const Real* const column = columns.data() + static_cast<size_t>(j) * k;
        Real sum = 0;
        Real magnitude = 0;
        for (size_t p = 0; p < k; ++p) {
          const Real product = row[p] * column[p];
          sum += product;
          magnitude += std::abs(product);
        }
        sum *= alpha;
        magnitude *= std::abs(alpha);
        if (beta != 0) {
          const Real old = ReadElement(
              args.out.data, args.out_dtype,
              out[batch] + i * args.out.row_stride + j * args.out.col_stride);
          sum += beta * old;
          magnitude += std::abs(beta * old);
        }
        if (args.bias != nullptr) {
          const Real bias = ReadElement(args.bias, args.out_dtype, j);
          sum += bias;
          magnitude += std::abs(bias);
        }
        result.values.push_back(sum);
        result.magnitudes.push_back(magnitude);
      }
    }
  }
  return result;
}

Reals ReadOut(const MatMulArgs& args) {
  Reals values;
  for (int64_t offset : Offsets(args.batch, args.out.batch_strides)) {
    for (int64_t i = 0; i < args.m; ++i) {
      for (int64_t j = 0; j < args.n; ++j) {
        values.push_back(ReadElement(
            args.out.data, args.out_dtype,
            offset + i * args.out.row_stride + j * args.out.col_stride));
      }
    }
  }
  return values;
}

}  // namespace crosshatch::reference
