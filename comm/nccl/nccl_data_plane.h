// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANE_H_
#define CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANE_H_

#include <memory>

#include "crosshatch/comm/data_plane.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/nccl/nccl_comm.h"
#include "crosshatch/comm/nccl/nccl_options.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

/// Returns one member's data plane for a group. ChooseNcclWay decides how NCCL
/// moves its data.
/// \param context of this rank; must outlive issued work
/// \param comm null for a group of one
std::unique_ptr<DataPlane> MakeNcclDataPlane(const GroupKey& key, int member,
                                             RankContext& context,
                                             const NcclOptions& options,
                                             std::unique_ptr<NcclComm> comm);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_DATA_PLANE_H_
