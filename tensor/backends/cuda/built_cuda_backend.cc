// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

#include "crosshatch/tensor/backends/cuda/cuda_backend.h"

namespace crosshatch {

absl::StatusOr<const DeviceBackend*> BuiltCudaBackend(
    int index, const CudaOptions& options) {
  return CudaBackend(index, options);
}

absl::StatusOr<const DeviceBackend*> BuiltCudaBackendForDryRuns() {
  return &CudaBackendForDryRuns();
}

}  // namespace crosshatch
