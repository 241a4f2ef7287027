// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_hub.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/comm/local/late_wait.h"

namespace crosshatch::internal {

void LocalHub::Enter(RankContext& context) {
  std::lock_guard lock(mutex_);
  contexts_[context.world_rank()] = &context;
}

void LocalHub::Leave(int rank) {
  std::lock_guard lock(mutex_);
  contexts_[rank] = nullptr;
}

std::shared_ptr<LocalGroup> LocalHub::Group(const GroupKey& key,
                                            absl::Duration timeout) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<LocalGroup>& group = groups_[key];
  if (group == nullptr) {
    std::vector<AgentId> hosts;
    for (int rank : key.world_ranks) {
      CH_CHECK(contexts_[rank] != nullptr) << "rank " << rank << " is not here";
      hosts.push_back(contexts_[rank]->host_agent());
    }
    group = std::make_shared<LocalGroup>(*this, key, hosts, timeout);
    if (failure_.has_value()) group->Fail(InducedError(*failure_));
  }
  return group;
}

void LocalHub::FailRank(int rank, const absl::Status& error) {
  (void)Fail({.world_ranks = {rank}, .error = error}, nullptr);
}

absl::Status LocalHub::FailGroup(const LocalGroup& group,
                                 const absl::Status& error) {
  return Fail(
      {.world_ranks = group.world_ranks, .of_group = true, .error = error},
      &group);
}

absl::Status LocalHub::failure() const {
  std::lock_guard lock(mutex_);
  return failure_.has_value() ? ResultOf(*failure_) : absl::OkStatus();
}

void LocalHub::CheckDeadlines(const WatchMoment& now) {
  const std::vector<std::shared_ptr<LocalGroup>> all = Groups();
  absl::Duration shortest = absl::InfiniteDuration();
  for (const auto& group : all) shortest = std::min(shortest, group->timeout);
  std::vector<LateWait> late;
  std::vector<const LocalGroup*> groups;
  std::vector<LateWait> others;
  bool is_over = false;
  for (const auto& group : all) {
    for (LateWait& wait : group->FindLate(now, shortest / 2)) {
      // The root cause may have begun to wait later than others.
      if (wait.age < group->timeout / 2) {
        others.push_back(std::move(wait));
        continue;
      }
      is_over = is_over || wait.age > group->timeout;
      late.push_back(std::move(wait));
      groups.push_back(group.get());
    }
  }
  if (!is_over) return;
  const size_t root = RootOf(late);
  const absl::Duration timeout = groups[root]->timeout;
  // Waits in groups of longer timeouts may explain it.
  std::move(others.begin(), others.end(), std::back_inserter(late));
  (void)FailGroup(*groups[root], absl::DeadlineExceededError(
                                     DescribeLate(late, root, timeout)));
}

absl::Status LocalHub::Fail(const FailureNotice& failure,
                            const LocalGroup* group) {
  {
    std::lock_guard lock(mutex_);
    // Ranks leave when they receive the first failure. Ranks that have not
    // received it yet then wait for ranks that have left.
    if (failure_.has_value()) {
      return group != nullptr && group == failed_group_
                 ? BoundedError(failure_->error)
                 : InducedError(*failure_);
    }
    failure_ = failure;
    failed_group_ = group;
    for (RankContext* context : contexts_) {
      if (context == nullptr) continue;
      context->Poison(ErrorFor(failure, context->world_rank()));
    }
  }
  for (const auto& each : Groups()) {
    each->Fail(each.get() == group ? BoundedError(failure.error)
                                   : InducedError(failure));
  }
  return BoundedError(failure.error);
}

std::vector<std::shared_ptr<LocalGroup>> LocalHub::Groups() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LocalGroup>> groups;
  groups.reserve(groups_.size());
  for (const auto& [key, group] : groups_) groups.push_back(group);
  return groups;
}

}  // namespace crosshatch::internal
