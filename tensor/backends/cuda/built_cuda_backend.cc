// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

#include "crosshatch/tensor/backends/cuda/cuda_backend.h"

namespace crosshatch {

absl::StatusOr<const DeviceBackend*> BuiltCudaBackend(int index) {
  return CudaBackend(index);
}

}  // namespace crosshatch
