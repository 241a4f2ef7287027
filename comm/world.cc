// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/world.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/control_plane.h"
#include "crosshatch/comm/data_plane.h"

namespace crosshatch {

const std::string& World::engine() const { return planes_.name(); }

World::World(ControlPlane& control, DataPlanes& planes, RankContext& context)
    : control_(control),
      planes_(planes),
      context_(context),
      job_(*this),
      rank_(context.world_rank()) {}

World::World(World& job, std::vector<int> ranks, int rank)
    : control_(job.control_),
      planes_(job.planes_),
      context_(job.context_),
      job_(job),
      ranks_(std::move(ranks)),
      rank_(rank) {}

int World::size() const {
  return ranks_.empty() ? context_.world_size()
                        : static_cast<int>(ranks_.size());
}

std::vector<int> World::AllRanks() const {
  if (!ranks_.empty()) return ranks_;
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

bool World::Contains(int world_rank) const {
  if (ranks_.empty()) return world_rank >= 0 && world_rank < size();
  return std::find(ranks_.begin(), ranks_.end(), world_rank) != ranks_.end();
}

absl::StatusOr<int> World::MemberOf(const GroupKey& key) const {
  CH_ASSIGN_OR_RETURN(const int member,
                      MemberIndex(key, world_rank(), context_.world_size()));
  if (ranks_.empty()) return member;
  std::vector<bool> is_here(static_cast<size_t>(context_.world_size()));
  for (const int rank : ranks_) is_here[static_cast<size_t>(rank)] = true;
  for (const int rank : key.world_ranks) {
    if (is_here[static_cast<size_t>(rank)]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(crosshatch::Describe(key), " names rank ", rank,
                     " in the world of ranks ", absl::StrJoin(ranks_, ", ")));
  }
  return member;
}

absl::StatusOr<World*> World::Subset(std::vector<int> world_ranks) {
  CH_ASSIGN_OR_RETURN(const int rank, MemberOf({"world", world_ranks, ""}));
  std::unique_ptr<World>& subset = job_.subsets_[world_ranks];
  if (subset == nullptr) {
    subset.reset(new World(job_, std::move(world_ranks), rank));
  }
  return subset.get();
}

absl::StatusOr<std::shared_ptr<Communicator>> World::Group(
    const std::string& name, std::vector<int> world_ranks,
    const std::string& stream_name) {
  const GroupKey key{name, std::move(world_ranks), stream_name};
  CH_ASSIGN_OR_RETURN(const int member, MemberOf(key));
  const auto found = job_.by_key_.find(key);
  if (found != job_.by_key_.end()) return found->second;
  const auto own = job_.timeouts_.find(name);
  const absl::Duration timeout =
      own == job_.timeouts_.end() ? control_.timeout() : own->second;
  CH_ASSIGN_OR_RETURN(std::unique_ptr<ControlGroup> group,
                      control_.Join(key, member, timeout));
  auto communicator = std::make_shared<Communicator>(
      key, member, context_, std::move(group), planes_, timeout);
  job_.by_key_.emplace(key, communicator);
  job_.groups_.push_back(communicator);
  return communicator;
}

absl::Status World::SetTimeout(const std::string& name,
                               absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the timeout of group '", name, "' must be positive, not ",
                     absl::FormatDuration(timeout)));
  }
  for (const auto& group : job_.groups_) {
    if (group->name() != name) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the timeout of group '", name, "' is set after its first use: the ",
        group->Describe(), " exists"));
  }
  job_.timeouts_[name] = timeout;
  return absl::OkStatus();
}

absl::Status World::Split(Communicator& all,
                          const std::vector<std::vector<int>>& groups) {
  return planes_.Split(all.world_ranks(), groups, context_, control_.timeout(),
                       [&](std::string blob) {
                         return all.Exchange(std::move(blob),
                                             "the id of its communicator");
                       });
}

void World::Abort(const absl::Status& error) {
  CH_CHECK(!error.ok()) << "rank " << world_rank()
                        << " aborts without an error";
  control_.FailRank(error);
}

}  // namespace crosshatch
