// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/reference/matmul.h"

#include <cmath>

namespace crosshatch::reference {

Products MatMul(const MatMulArgs& args) {
  const auto a = Offsets(args.batch, args.a.batch_strides);
  const auto b = Offsets(args.batch, args.b.batch_strides);
  const auto out = Offsets(args.batch, args.out.batch_strides);
  const auto alpha = static_cast<Real>(args.alpha);
  const auto beta = static_cast<Real>(args.beta);
  Products result;
  for (size_t batch = 0; batch < out.size(); ++batch) {
    for (int64_t i = 0; i < args.m; ++i) {
      for (int64_t j = 0; j < args.n; ++j) {
        Real sum = 0;
        Real magnitude = 0;
        for (int64_t p = 0; p < args.k; ++p) {
          const Real x = ReadElement(
              args.a.data, args.dtype,
              a[batch] + i * args.a.row_stride + p * args.a.col_stride);
          const Real y = ReadElement(
              args.b.data, args.dtype,
              b[batch] + p * args.b.row_stride + j * args.b.col_stride);
          sum += x * y;
          magnitude += std::abs(x * y);
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
