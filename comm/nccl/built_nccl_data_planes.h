// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_BUILT_NCCL_DATA_PLANES_H_
#define CROSSHATCH_COMM_NCCL_BUILT_NCCL_DATA_PLANES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch {

/// Calls MakeNcclDataPlanes in a build with --config=cuda.
/// \error kUnimplemented in any other build.
absl::StatusOr<std::unique_ptr<DataPlanes>> BuiltNcclDataPlanes(
    const NcclOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_BUILT_NCCL_DATA_PLANES_H_
