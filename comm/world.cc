// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/world.h"

#include <numeric>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/engine.h"

namespace crosshatch {

const std::string& World::engine() const { return engine_.name(); }

std::vector<int> World::AllRanks() const {
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

absl::StatusOr<std::shared_ptr<Communicator>> World::Group(
    const std::string& name, std::vector<int> world_ranks,
    const std::string& stream_name) {
  const GroupKey key{name, std::move(world_ranks), stream_name};
  CH_ASSIGN_OR_RETURN(const int member, MemberIndex(key, rank(), size()));
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) return found->second;
  CH_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      engine_.Connect(key, member));
  auto communicator = std::make_shared<Communicator>(key, member, context_,
                                                     std::move(transport));
  by_key_.emplace(key, communicator);
  groups_.push_back(communicator);
  return communicator;
}

absl::Status World::Divide(Communicator& all,
                           const std::vector<std::vector<int>>& groups) {
  return engine_.Divide(all.world_ranks(), groups, [&](std::string blob) {
    return all.Exchange(std::move(blob), "the id of its communicator");
  });
}

void World::Abort(const absl::Status& error) {
  CH_CHECK(!error.ok()) << "rank " << rank() << " aborts without an error";
  engine_.FailJob(error);
}

}  // namespace crosshatch
