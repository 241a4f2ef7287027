// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_ALL_RANKS_H_
#define CROSSHATCH_COMM_ALL_RANKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// Returns the communicator of all ranks, "world", for work on the compute
/// stream. All ranks call it.
absl::StatusOr<std::shared_ptr<Communicator>> AllRanks(World& world);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_ALL_RANKS_H_
