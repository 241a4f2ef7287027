// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_hub.h"

#include <utility>

#include "crosshatch/base/check.h"

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
    group = std::make_shared<LocalGroup>(
        &graph_, key, std::move(hosts),
        [this](const LocalGroup& broken, const absl::Status& failure) {
          FailGroup(broken, failure);
        });
    if (!failure_.result.ok()) group->Fail(failure_.induced);
  }
  return group;
}

void LocalHub::FailRank(int rank, const absl::Status& error) {
  Fail(FailureOfRank(rank, error), nullptr);
}

void LocalHub::FailGroup(const LocalGroup& group, const absl::Status& error) {
  Fail(FailureOfGroup(group.world_ranks(), error), &group);
}

absl::Status LocalHub::failure() const {
  std::lock_guard lock(mutex_);
  return failure_.result;
}

void LocalHub::CheckDeadlines(absl::Duration timeout) {
  const auto now = Rendezvous::Clock::now();
  for (const auto& group : Groups()) group->CheckDeadline(now, timeout);
}

void LocalHub::Fail(const JobFailure& failure, const LocalGroup* group) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.result.ok()) return;
    failure_ = failure;
    for (RankContext* context : contexts_) {
      if (context == nullptr) continue;
      context->Poison(failure.For(context->world_rank()));
    }
  }
  for (const auto& each : Groups()) {
    each->Fail(each.get() == group ? failure.own : failure.induced);
  }
}

std::vector<std::shared_ptr<LocalGroup>> LocalHub::Groups() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LocalGroup>> groups;
  groups.reserve(groups_.size());
  for (const auto& [key, group] : groups_) groups.push_back(group);
  return groups;
}

}  // namespace crosshatch::internal
