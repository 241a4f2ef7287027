// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_BUILT_CUDA_BACKEND_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_BUILT_CUDA_BACKEND_H_

#include "absl/status/statusor.h"
#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// Returns CudaBackend(index, options) in a build with --config=cuda.
/// \error as CudaBackend; kUnimplemented in any other build.
absl::StatusOr<const DeviceBackend*> BuiltCudaBackend(
    int index, const CudaOptions& options);

/// Returns CudaBackendForDryRuns() in a build with --config=cuda.
/// \error kUnimplemented in any other build.
absl::StatusOr<const DeviceBackend*> BuiltCudaBackendForDryRuns();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_BUILT_CUDA_BACKEND_H_
