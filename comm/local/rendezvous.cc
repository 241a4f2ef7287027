// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace crosshatch::internal {
namespace {

constexpr uint32_t kFailed = 1;

/// Returns whether a round was completed between the two epochs.
bool Met(uint32_t before, uint32_t after) {
  return (before & ~kFailed) != (after & ~kFailed);
}

}  // namespace

Rendezvous::Rendezvous(WaitGraph* graph, std::string group,
                       std::vector<int> world_ranks,
                       std::vector<AgentId> agents, OnBroken on_broken)
    : graph_(graph),
      group_(std::move(group)),
      on_broken_(std::move(on_broken)) {
  members_.reserve(world_ranks.size());
  for (size_t i = 0; i < world_ranks.size(); ++i) {
    members_.push_back({.world_rank = world_ranks[i], .agent = agents[i]});
  }
}

void Rendezvous::SetAgent(int member, AgentId agent) {
  std::vector<WaitGraph::Stalls> stalls;
  std::lock_guard lock(mutex_);
  if (members_[member].agent == agent) return;
  members_[member].agent = agent;
  if (graph_ == nullptr) return;
  const std::vector<AgentId> missing = MissingAgents();
  for (const Member& waiter : members_) {
    if (!waiter.waits) continue;
    stalls.push_back(graph_->UpdateWait(waiter.agent, missing));
  }
}

absl::Status Rendezvous::Meet(int member,
                              absl::FunctionRef<absl::Status()> check,
                              absl::FunctionRef<std::string()> what) {
  uint32_t epoch;
  {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    Member& self = members_[member];
    self.came = true;
    self.what = &what;
    ++num_came_;
    epoch = epoch_.Get();
    if (num_came_ == static_cast<int>(members_.size())) {
      absl::Status agreement = check();
      if (agreement.ok()) {
        EndWaits();
        num_came_ = 0;
        for (Member& m : members_) m.came = false;
        epoch_.Change(epoch + 2);
        lock.unlock();
        epoch_.Wake();
        return absl::OkStatus();
      }
      lock.unlock();
      Break(agreement);
      lock.lock();
      return failure_;
    }
    if (num_came_ == 1) first_came_ = SteadyTime::clock::now();
  }
  if (!epoch_.SpinWhile(epoch)) WaitFor(member, epoch, what);
  if (Met(epoch, epoch_.Get())) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::WaitFor(int member, uint32_t epoch,
                         absl::FunctionRef<std::string()> what) {
  if (graph_ != nullptr) {
    WaitGraph::Stalls stalls;
    std::lock_guard lock(mutex_);
    if (epoch_.Get() != epoch) return;
    members_[member].waits = true;
    stalls = graph_->BeginWait(
        members_[member].agent, MissingAgents(),
        absl::StrCat(what(), " of ", group_),
        [this, epoch](const std::string& reason) { OnStall(epoch, reason); });
  }
  epoch_.WaitWhile(epoch);
}

void Rendezvous::Fail(const absl::Status& failure) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = failure;
    EndWaits();
    epoch_.Change(epoch_.Get() | kFailed);
  }
  epoch_.Wake();
}

std::optional<LateWait> Rendezvous::FindLate(const WatchMoment& now,
                                             absl::Duration least) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok() || num_came_ == 0) return std::nullopt;
  if (seen_ != epoch_.Get()) {
    seen_ = epoch_.Get();
    since_ = now.BeginOf(first_came_);
  }
  LateWait late{.group = group_, .age = now.counted - since_};
  if (late.age < least) return std::nullopt;
  for (const Member& member : members_) {
    (member.came ? late.waiting : late.missing).push_back(member.world_rank);
  }
  late.text = DescribeMembers();
  return late;
}

void Rendezvous::OnStall(uint32_t epoch, const std::string& reason) {
  absl::Status failure;
  {
    std::lock_guard lock(mutex_);
    if (epoch_.Get() != epoch) return;
    failure = absl::FailedPreconditionError(absl::StrCat(
        group_, " can never go on: ", DescribeMembers(), " (", reason, ")"));
  }
  Break(failure);
}

void Rendezvous::Break(const absl::Status& failure) {
  // The owner first: once released, members return and report the error.
  Fail(on_broken_(failure));
}

std::vector<AgentId> Rendezvous::MissingAgents() const {
  std::vector<AgentId> missing;
  for (const Member& member : members_) {
    if (!member.came) missing.push_back(member.agent);
  }
  return missing;
}

std::string Rendezvous::DescribeMembers() const {
  std::string text;
  for (const Member& member : members_) {
    if (!member.came) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "rank ", member.world_rank,
                    " came to ", (*member.what)());
  }
  for (const Member& member : members_) {
    if (member.came) continue;
    absl::StrAppend(&text, ", rank ", member.world_rank, " did not come");
  }
  return text;
}

void Rendezvous::EndWaits() {
  for (Member& member : members_) {
    if (!member.waits) continue;
    member.waits = false;
    graph_->EndWait(member.agent);
  }
}

}  // namespace crosshatch::internal
