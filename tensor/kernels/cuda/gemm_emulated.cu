// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/cuda/gemm.h"

namespace crosshatch::internal {
namespace {

template <typename C>
C At(const CudaMatrix& matrix, DType dtype, int64_t row, int64_t col) {
  return LoadElement<C>(matrix.data, dtype,
                        matrix.transposed ? col * matrix.leading + row
                                          : row * matrix.leading + col);
}

CudaMatrix OfBatch(CudaMatrix matrix, DType dtype, int64_t number) {
  matrix.data = static_cast<std::byte*>(matrix.data) +
                number * matrix.batch_stride * SizeOf(dtype);
  return matrix;
}

// A product is a block of one thread, which adds by rows of b.
template <typename C>
__global__ void Product(CudaGemmArgs args) {
  const int64_t number = blockIdx.x;
  const CudaMatrix a = OfBatch(args.a, args.dtype, number);
  const CudaMatrix b = OfBatch(args.b, args.dtype, number);
  const CudaMatrix out = OfBatch(args.out, args.out_dtype, number);
  const auto n = static_cast<size_t>(args.n);
  std::vector<C> of_b(static_cast<size_t>(args.k) * n);
  for (int64_t t = 0; t < args.k; ++t) {
    for (int64_t j = 0; j < args.n; ++j) {
      of_b[static_cast<size_t>(t) * n + static_cast<size_t>(j)] =
          At<C>(b, args.dtype, t, j);
    }
  }
  std::vector<C> row(n);
  for (int64_t i = 0; i < args.m; ++i) {
    row.assign(n, C(0));
    for (int64_t t = 0; t < args.k; ++t) {
      const C factor = At<C>(a, args.dtype, i, t);
      const C* const from = of_b.data() + static_cast<size_t>(t) * n;
      for (size_t j = 0; j < n; ++j) row[j] += factor * from[j];
    }
    for (size_t j = 0; j < n; ++j) {
      const auto to = i * out.leading + static_cast<int64_t>(j);
      C value = static_cast<C>(args.alpha) * row[j];
      if (args.beta != 0) {
        value += static_cast<C>(args.beta) *
                 LoadElement<C>(out.data, args.out_dtype, to);
      }
      StoreElement(out.data, args.out_dtype, to, value);
    }
  }
}

}  // namespace

const int64_t kCudaGemmWorkspaceBytes = 0;

void CudaGemm(const CudaGemmArgs& args, KernelContext& context) {
  const LaunchGeometry geometry = {.blocks = args.batch, .threads = 1};
  if (args.dtype == DType::kFloat64) {
    LaunchKernel("gemm", &Product<double>, geometry, context, args);
  } else {
    LaunchKernel("gemm", &Product<float>, geometry, context, args);
  }
}

}  // namespace crosshatch::internal
