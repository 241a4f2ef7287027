// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/device_choice.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/backends/cuda/built_cuda_backend.h"

namespace crosshatch {
namespace {

/// `found` by `option` of RunOptions or, without it, in the build.
absl::StatusOr<const DeviceBackend*> AskedFor(
    absl::StatusOr<const DeviceBackend*> found, const char* option) {
  if (found.ok() && *found == nullptr) {
    found = absl::InvalidArgumentError(absl::StrCat(
        "RunOptions::", option,
        " returned null: it must return a backend, or an error that says why "
        "there is none"));
  }
  if (found.ok()) return found;
  return absl::Status(
      found.status().code(),
      absl::StrCat("--device=cuda: ", std::string(found.status().message())));
}

}  // namespace

absl::StatusOr<std::vector<const DeviceBackend*>> ChooseDevices(
    const RunOptions& options, int ranks) {
  std::vector<const DeviceBackend*> devices;
  if (options.device != Device::Kind::kCuda) return devices;
  while (static_cast<int>(devices.size()) < ranks) {
    const int index = static_cast<int>(devices.size());
    const absl::StatusOr<const DeviceBackend*> device =
        AskedFor(options.cuda_device ? options.cuda_device(index, options.cuda)
                                     : BuiltCudaBackend(index, options.cuda),
                 "cuda_device");
    if (device.ok()) {
      devices.push_back(*device);
      continue;
    }
    if (absl::IsNotFound(device.status()) && index > 0) break;
    return device.status();
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
  return AskedFor(options.cuda_of_dry_runs ? options.cuda_of_dry_runs()
                                           : BuiltCudaBackendForDryRuns(),
                  "cuda_of_dry_runs");
}

absl::Status CheckDevice(const RunOptions& options) {
  if (options.device == Device::Kind::kCuda) return absl::OkStatus();
  if (options.device == Device::Kind::kMeta) {
    return absl::InvalidArgumentError(
        "RunOptions::device is kMeta: must be kCpu or kCuda. A run without "
        "elements is a dry run: RunOptions::backend = Backend::kFake, "
        "--backend=fake");
  }
  if (!options.cuda.tf32) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--tf32 is for --device=cuda: the CPU multiplies float32 as it is. Leave "
      "out --tf32 (RunOptions::cuda.tf32), or compute on CUDA");
}

}  // namespace crosshatch
