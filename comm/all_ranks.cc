// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/all_ranks.h"

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace crosshatch {

absl::StatusOr<std::shared_ptr<Communicator>> AllRanks(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.Group("world", std::move(ranks),
                     world.context().compute_stream().name());
}

}  // namespace crosshatch
