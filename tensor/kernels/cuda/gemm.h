// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_

/// \file
/// Matrix products on the device by a library: cuBLASLt, or under emulation a
/// plain loop.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// A matrix of unit stride in one of its dims, one of a batch.
struct CudaMatrix {
  void* data = nullptr;
  /// Elements from one row to the next or, where transposed, from one column to
  /// the next.
  int64_t leading = 1;
  bool transposed = false;
  /// From one of the batch to the next; 0 for one that all share.
  int64_t batch_stride = 0;
};

/// out = alpha * a b + beta * out: a (m, k), b (k, n), out (m, n) not
/// transposed; all sizes are positive. Sums are of float, or of double for f64;
/// with beta == 0 the old out is not read.
struct CudaGemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  CudaMatrix a;
  CudaMatrix b;
  CudaMatrix out;
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  double alpha = 1;
  double beta = 0;
  /// kCudaGemmWorkspaceBytes bytes.
  void* workspace = nullptr;
};

extern const int64_t kCudaGemmWorkspaceBytes;
void CudaGemm(const CudaGemmArgs& args, KernelContext& context);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GEMM_H_
