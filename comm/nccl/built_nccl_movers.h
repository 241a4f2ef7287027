// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_BUILT_NCCL_MOVERS_H_
#define CROSSHATCH_COMM_NCCL_BUILT_NCCL_MOVERS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/comm/device_mover.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch {

/// MakeNcclMovers in a build with --config=cuda.
/// \error kUnimplemented in any other build.
absl::StatusOr<std::unique_ptr<DeviceMovers>> BuiltNcclMovers(
    const NcclOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_BUILT_NCCL_MOVERS_H_
