// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_
#define CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_

#include <memory>

#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/nccl/nccl_options.h"

namespace crosshatch {

/// Returns the NCCL planes of a rank with a CUDA backend. Groups of a mesh's
/// axes (World::Split) are splits of the world's communicator; groups of an
/// axis for more streams are splits of that axis's. Any other group creates a
/// communicator at its first collective, from an id of its first member. Only
/// its members take part, unlike in a split.
std::unique_ptr<DataPlanes> MakeNcclDataPlanes(const NcclOptions& options);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANES_H_
