// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/all_ranks.h"

namespace crosshatch {

absl::StatusOr<std::shared_ptr<Communicator>> AllRanks(World& world) {
  return world.Group("world", world.AllRanks(),
                     world.context().compute_stream().name());
}

}  // namespace crosshatch
