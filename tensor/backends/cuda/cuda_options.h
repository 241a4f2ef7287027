// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_

namespace crosshatch {

/// How a device computes where there is a choice.
struct CudaOptions {
  /// Products of float32 matrices round what they multiply to TF32: 10 bits of
  /// mantissa in place of 23, for tensor cores. They add in float32 all the
  /// same; other dtypes, and all that is no product, stay as they are.
  bool tf32 = false;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_OPTIONS_H_
