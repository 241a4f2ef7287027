// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/comm/local/thread_barrier.h"

namespace crosshatch::internal {
namespace {

constexpr uint32_t kFailed = 1;

/// Whether a meeting took place between the two epochs.
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
    epoch = epoch_.load(std::memory_order_relaxed);
    if (num_came_ == static_cast<int>(members_.size())) {
      absl::Status agreement = check();
      if (agreement.ok()) {
        EndWaits();
        num_came_ = 0;
        for (Member& m : members_) m.came = false;
        epoch_.store(epoch + 2, std::memory_order_release);
        lock.unlock();
        epoch_.notify_all();
        return absl::OkStatus();
      }
      lock.unlock();
      Break(agreement);
      lock.lock();
      return failure_;
    }
    if (num_came_ == 1) first_came_ = Clock::now();
  }
  if (!SpinWhileEqual(epoch_, epoch)) WaitFor(member, epoch, what);
  if (Met(epoch, epoch_.load(std::memory_order_acquire))) {
    return absl::OkStatus();
  }
  std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::WaitFor(int member, uint32_t epoch,
                         absl::FunctionRef<std::string()> what) {
  if (graph_ != nullptr) {
    WaitGraph::Stalls stalls;
    std::lock_guard lock(mutex_);
    if (epoch_.load(std::memory_order_relaxed) != epoch) return;
    members_[member].waits = true;
    stalls = graph_->BeginWait(
        members_[member].agent, MissingAgents(),
        absl::StrCat(what(), " of ", group_),
        [this, epoch](const std::string& reason) { OnStall(epoch, reason); });
  }
  epoch_.wait(epoch, std::memory_order_acquire);
}

void Rendezvous::Fail(const absl::Status& failure) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = failure;
    EndWaits();
    epoch_.fetch_or(kFailed, std::memory_order_release);
  }
  epoch_.notify_all();
}

void Rendezvous::CheckDeadline(Clock::time_point now, absl::Duration timeout) {
  absl::Status failure;
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok() || num_came_ == 0) return;
    const absl::Duration waited = absl::FromChrono(now - first_came_);
    if (waited <= timeout) return;
    failure = absl::DeadlineExceededError(
        absl::StrCat(group_, " timed out after ", absl::FormatDuration(timeout),
                     ": ", DescribeMembers()));
  }
  Break(failure);
}

void Rendezvous::OnStall(uint32_t epoch, const std::string& reason) {
  absl::Status failure;
  {
    std::lock_guard lock(mutex_);
    if (epoch_.load(std::memory_order_relaxed) != epoch) return;
    failure = absl::FailedPreconditionError(absl::StrCat(
        group_, " can never go on: ", DescribeMembers(), " (", reason, ")"));
  }
  Break(failure);
}

void Rendezvous::Break(const absl::Status& failure) {
  // The owner first: once released, members return and report.
  on_broken_(failure);
  Fail(failure);
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
