// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {

absl::StatusOr<const DeviceBackend*> BuiltCudaBackend(int /*index*/) {
  return absl::UnimplementedError(
      "this build has no code for CUDA: build it with --config=cuda "
      "(docs/devices.md)");
}

}  // namespace crosshatch
