// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {
namespace {

absl::Status NoCuda() {
  return absl::UnimplementedError(
      "this build has no code for CUDA: build it with --config=cuda "
      "(docs/devices.md)");
}

}  // namespace

absl::StatusOr<const DeviceBackend*> BuiltCudaBackend(
    int /*index*/, const CudaOptions& /*options*/) {
  return NoCuda();
}

absl::StatusOr<const DeviceBackend*> BuiltCudaBackendForDryRuns() {
  return NoCuda();
}

}  // namespace crosshatch
