// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/built_nccl_movers.h"

#include "crosshatch/comm/nccl/nccl_movers.h"

namespace crosshatch {

absl::StatusOr<std::unique_ptr<DeviceMovers>> BuiltNcclMovers(
    const NcclOptions& options) {
  return MakeNcclMovers(options);
}

}  // namespace crosshatch
