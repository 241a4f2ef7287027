// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_

namespace crosshatch {

/// Choices in how a device computes.
struct CudaOptions {
  /// Rounds the factors of float32 matrix products to TF32, with 10 bits of
  /// mantissa instead of 23, for tensor cores. Sums stay in float32; other
  /// dtypes and other ops do not change.
  bool tf32 = false;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_
