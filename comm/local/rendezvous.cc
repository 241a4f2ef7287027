// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/local/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::internal {
namespace {

constexpr uint32_t kFailed = 1;

/// Returns whether a round was completed between the two epochs.
bool Met(uint32_t before, uint32_t after) {
  return (before & ~kFailed) != (after & ~kFailed);
}

}  // namespace

Rendezvous::Rendezvous(WaitGraph& graph, std::string group,
                       std::vector<int> world_ranks,
                       const std::vector<AgentId>& agents, OnBroken on_broken)
    : graph_(graph),
      group_(std::move(group)),
      world_ranks_(std::move(world_ranks)),
      on_broken_(std::move(on_broken)),
      fingerprints_(agents.size()) {
  for (const AgentId agent : agents) members_.push_back({.agent = agent});
  for (auto& blobs : blobs_) blobs.resize(agents.size());
}

void Rendezvous::SetAgent(int member, AgentId agent) {
  std::vector<WaitGraph::Stalls> stalls;
  std::lock_guard lock(mutex_);
  if (members_[member].agent == agent) return;
  members_[member].agent = agent;
  const std::vector<AgentId> missing = MissingAgents();
  for (const Member& waiter : members_) {
    if (!waiter.waits) continue;
    stalls.push_back(graph_.UpdateWait(waiter.agent, missing));
  }
}

absl::Status Rendezvous::Agree(int member, const Fingerprint& fingerprint) {
  uint32_t epoch;
  {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    members_[member].came = true;
    fingerprints_[member] = &fingerprint;
    ++num_came_;
    epoch = epoch_.Get();
    if (num_came_ == static_cast<int>(members_.size())) {
      absl::Status agreement =
          CheckAgreement(group_, world_ranks_, fingerprints_);
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
  if (!epoch_.SpinWhile(epoch)) WaitFor(member, epoch);
  if (Met(epoch, epoch_.Get())) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return failure_;
}

absl::StatusOr<std::vector<std::string>> Rendezvous::Gather(
    int member, std::string blob, const std::string& what) {
  // The round cannot end before this member has come.
  std::vector<std::string>& blobs = blobs_[epoch_.Get() / 2 % 2];
  blobs[static_cast<size_t>(member)] = std::move(blob);
  CH_RETURN_IF_ERROR(Agree(member, {.sequence = -1, .label = what}));
  return blobs;
}

void Rendezvous::WaitFor(int member, uint32_t epoch) {
  {
    WaitGraph::Stalls stalls;
    std::lock_guard lock(mutex_);
    if (epoch_.Get() != epoch) return;
    members_[member].waits = true;
    stalls = graph_.BeginWait(
        members_[member].agent, MissingAgents(),
        absl::StrCat(DescribeInFull(*fingerprints_[member]), " of ", group_),
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
  for (size_t i = 0; i < members_.size(); ++i) {
    (members_[i].came ? late.waiting : late.missing).push_back(world_ranks_[i]);
  }
  late.text = DescribeMembers("");
  return late;
}

void Rendezvous::OnStall(uint32_t epoch, const std::string& reason) {
  absl::Status failure;
  {
    std::lock_guard lock(mutex_);
    if (epoch_.Get() != epoch) return;
    failure = absl::FailedPreconditionError(
        absl::StrCat(group_, " can never go on: ", reason, " (",
                     DescribeMembers(reason), ")"));
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

std::string Rendezvous::DescribeMembers(absl::string_view before) const {
  std::vector<const Fingerprint*> came(members_.size());
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].came) came[i] = fingerprints_[i];
  }
  return DescribeArrivals(world_ranks_, came, before);
}

void Rendezvous::EndWaits() {
  for (Member& member : members_) {
    if (!member.waits) continue;
    member.waits = false;
    graph_.EndWait(member.agent);
  }
}

}  // namespace crosshatch::internal
