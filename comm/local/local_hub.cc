// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/local_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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
    if (!failure_.ok()) group->Fail(induced_);
  }
  return group;
}

void LocalHub::FailRank(int rank, const absl::Status& error) {
  const std::string message(error.message());
  Fail({.result = absl::Status(error.code(),
                               absl::StrCat("rank ", rank, ": ", message)),
        .ranks = {&rank, 1},
        .own = error,
        .induced = absl::AbortedError(
            absl::StrCat("rank ", rank, " failed: ", message))});
}

void LocalHub::FailGroup(const LocalGroup& group, const absl::Status& error) {
  Fail({.result = error,
        .ranks = group.world_ranks(),
        .group = &group,
        .own = error,
        .induced = absl::AbortedError(
            absl::StrCat("another group failed: ", error.message()))});
}

absl::Status LocalHub::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void LocalHub::CheckDeadlines(absl::Duration timeout) {
  const auto now = Rendezvous::Clock::now();
  for (const auto& group : Groups()) group->CheckDeadline(now, timeout);
}

void LocalHub::Fail(const Failure& failure) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = failure.result;
    induced_ = failure.induced;
    for (RankContext* context : contexts_) {
      if (context == nullptr) continue;
      const bool own = std::find(failure.ranks.begin(), failure.ranks.end(),
                                 context->world_rank()) != failure.ranks.end();
      context->Poison(own ? failure.own : failure.induced);
    }
  }
  for (const auto& group : Groups()) {
    const bool own = group.get() == failure.group;
    group->Fail(own ? failure.own : failure.induced);
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
