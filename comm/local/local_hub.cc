// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_hub.h"

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

std::shared_ptr<LocalGroup> LocalHub::Group(const GroupKey& key) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<LocalGroup>& group = groups_[key];
  if (group == nullptr) {
    std::vector<AgentId> hosts;
    for (int rank : key.world_ranks) {
      CH_CHECK(contexts_[rank] != nullptr) << "rank " << rank << " is not here";
      hosts.push_back(contexts_[rank]->host_agent());
    }
    group = std::make_shared<LocalGroup>(*this, key, hosts);
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

void LocalHub::CheckDeadlines(const WatchMoment& now, absl::Duration timeout) {
  std::vector<LateWait> late;
  std::vector<std::shared_ptr<LocalGroup>> groups;
  bool is_over = false;
  for (const auto& group : Groups()) {
    // The root cause may have begun to wait later than others.
    for (LateWait& wait : group->FindLate(now, timeout / 2)) {
      is_over = is_over || wait.age > timeout;
      late.push_back(std::move(wait));
      groups.push_back(group);
    }
  }
  if (!is_over) return;
  (void)FailGroup(*groups[RootOf(late)],
                  absl::DeadlineExceededError(DescribeLate(late, timeout)));
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
