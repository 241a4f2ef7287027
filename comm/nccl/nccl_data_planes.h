// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_
#define CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_

#include <memory>

#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch {

/// Moves data by NCCL, for ranks whose contexts are of CUDA backends. The
/// groups of a mesh's axes (World::Split) are splits of one communicator of
/// the world, and those of an axis' streams splits of the axis' one. The
/// communicator of any other group is made of an id that its first member
/// draws, at the group's first collective: its members come together there,
/// and no other rank has to, as it would for a split.
std::unique_ptr<DataPlanes> MakeNcclDataPlanes(const NcclOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_
