// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/device_choice.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {
namespace {

absl::Status AskedFor(const absl::Status& error) {
  return absl::Status(error.code(), absl::StrCat("--device=cuda: ",
                                                 std::string(error.message())));
}

}  // namespace

absl::StatusOr<std::vector<const DeviceBackend*>> ChooseDevices(
    const RunOptions& options, int ranks) {
  std::vector<const DeviceBackend*> devices;
  if (options.device != Device::Kind::kCuda) return devices;
  while (static_cast<int>(devices.size()) < ranks) {
    const int index = static_cast<int>(devices.size());
    const absl::StatusOr<const DeviceBackend*> device =
        options.cuda_device ? options.cuda_device(index, options.cuda)
                            : BuiltCudaBackend(index, options.cuda);
    if (device.ok()) {
      devices.push_back(*device);
      continue;
    }
    if (absl::IsNotFound(device.status()) && index > 0) break;
    return AskedFor(device.status());
  }
  const size_t found = devices.size();
  for (size_t rank = found; rank < static_cast<size_t>(ranks); ++rank) {
    devices.push_back(devices[rank % found]);
  }
  return devices;
}

absl::StatusOr<const DeviceBackend*> ChooseDeviceOfDryRun(
    const RunOptions& options) {
  if (options.device != Device::Kind::kCuda) return nullptr;
  absl::StatusOr<const DeviceBackend*> device =
      options.cuda_of_dry_runs ? options.cuda_of_dry_runs()
                               : BuiltCudaBackendForDryRuns();
  if (!device.ok()) return AskedFor(device.status());
  return device;
}

absl::Status CheckDeviceFlags(const RunOptions& options) {
  if (options.device == Device::Kind::kCuda || !options.cuda.tf32) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tf32 is for --device=cuda: the CPU multiplies float32 as it is");
}

}  // namespace crosshatch
