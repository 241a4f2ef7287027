// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {
namespace {

std::vector<const DeviceBackend*> CudaDevices() {
  std::vector<const DeviceBackend*> devices;
  for (;;) {
    const auto device = CudaBackend(static_cast<int>(devices.size()));
    if (absl::IsNotFound(device.status()) && !devices.empty()) return devices;
    CH_CHECK_OK(device.status());
    devices.push_back(*device);
  }
}

// Assigns the ranks to devices in turn.
absl::Status RunOnCuda(int ranks, absl::FunctionRef<absl::Status(World&)> body,
                       const JobOptions& asked) {
  static const auto* const devices =
      new std::vector<const DeviceBackend*>(CudaDevices());
  JobOptions options = asked;
  options.backends = *devices;
  return RunLocal(ranks, body, options);
}

[[maybe_unused]] const bool registered =
    RegisterRunner(TestEngine::kLocal, Device::Kind::kCuda, RunOnCuda);

}  // namespace
}  // namespace crosshatch
