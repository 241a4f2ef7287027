// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_LAUNCH_DEVICE_CHOICE_H_
#define CROSSHATCH_LAUNCH_DEVICE_CHOICE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/launch/run_options.h"
#include "crosshatch/tensor/device_backend.h"

namespace crosshatch {

/// The devices of `ranks` rank threads, by rank, as `options` say; empty for
/// the CPU. Rank r is on device r of those that there are, counted round and
/// round.
/// \error why there is none, or why one that is there cannot be used, with the
///     flag that asks for it; kInvalidArgument where `options.cuda_device`
///     gives null.
absl::StatusOr<std::vector<const DeviceBackend*>> ChooseDevices(
    const RunOptions& options, int ranks);

/// What a dry run with `options` is one of; null for the CPU. No device has to
/// be there. \error as of ChooseDevices.
absl::StatusOr<const DeviceBackend*> ChooseDeviceOfDryRun(
    const RunOptions& options);

/// \error kInvalidArgument naming a device that runs have none of, or an option
///     that only another device takes.
absl::Status CheckDevice(const RunOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_LAUNCH_DEVICE_CHOICE_H_
