// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/device_choice.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {

absl::StatusOr<std::vector<const DeviceBackend*>> ChooseDevices(
    const RunOptions& options, int ranks) {
  std::vector<const DeviceBackend*> devices;
  if (options.device != Device::Kind::kCuda) return devices;
  while (static_cast<int>(devices.size()) < ranks) {
    const int index = static_cast<int>(devices.size());
    const absl::StatusOr<const DeviceBackend*> device =
        options.cuda_device ? options.cuda_device(index)
                            : BuiltCudaBackend(index);
    if (device.ok()) {
      devices.push_back(*device);
      continue;
    }
    if (absl::IsNotFound(device.status()) && index > 0) break;
    return absl::Status(device.status().code(),
                        absl::StrCat("--device=cuda: ",
                                     std::string(device.status().message())));
  }
  const size_t found = devices.size();
  for (size_t rank = found; rank < static_cast<size_t>(ranks); ++rank) {
    devices.push_back(devices[rank % found]);
  }
  return devices;
}

}  // namespace crosshatch
