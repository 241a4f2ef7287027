// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/built_nccl_data_planes.h"

#include "crosshatch/comm/nccl/nccl_data_planes.h"

namespace crosshatch {

absl::StatusOr<std::unique_ptr<DataPlanes>> BuiltNcclDataPlanes(
    const NcclOptions& options) {
  return MakeNcclDataPlanes(options);
}

}  // namespace crosshatch
