// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/wait_graph.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch {

WaitGraph::Stalls& WaitGraph::Stalls::operator=(Stalls&& other) {
  if (this != &other) {
    Run();
    found_ = std::move(other.found_);
    other.found_.clear();
  }
  return *this;
}

void WaitGraph::Stalls::Run() {
  for (auto& [on_stall, reason] : found_) on_stall(reason);
  found_.clear();
}

AgentId WaitGraph::AddAgent(int rank, std::string name, AgentId issuer) {
  std::lock_guard lock(mutex_);
  agents_.push_back({.rank = rank, .name = std::move(name), .issuer = issuer});
  return static_cast<AgentId>(agents_.size()) - 1;
}

WaitGraph::Stalls WaitGraph::SetIdle(AgentId agent) {
  std::lock_guard lock(mutex_);
  at(agent).state = State::kIdle;
  return FindStalls(agent);
}

void WaitGraph::SetRunning(AgentId agent) {
  std::lock_guard lock(mutex_);
  // A queue that gets more work while its worker is blocked stays blocked.
  if (at(agent).state == State::kIdle) at(agent).state = State::kRunning;
}

WaitGraph::Stalls WaitGraph::SetFinished(AgentId agent) {
  std::lock_guard lock(mutex_);
  at(agent).state = State::kFinished;
  return FindStalls(agent);
}

WaitGraph::Stalls WaitGraph::BeginWait(AgentId agent,
                                       absl::Span<const AgentId> awaited,
                                       std::string what, OnStall on_stall) {
  std::lock_guard lock(mutex_);
  Agent& waiter = at(agent);
  CH_CHECK(waiter.state == State::kRunning)
      << Label(agent) << " begins to wait for '" << what
      << "' and does not run; it waits for '" << waiter.what << "'";
  waiter.state = State::kWaiting;
  waiter.awaited.assign(awaited.begin(), awaited.end());
  waiter.what = std::move(what);
  waiter.on_stall = std::move(on_stall);
  return FindStalls(agent);
}

WaitGraph::Stalls WaitGraph::UpdateWait(AgentId agent,
                                        absl::Span<const AgentId> awaited) {
  std::lock_guard lock(mutex_);
  Agent& waiter = at(agent);
  CH_CHECK(waiter.state == State::kWaiting) << Label(agent);
  waiter.awaited.assign(awaited.begin(), awaited.end());
  return FindStalls(agent);
}

void WaitGraph::EndWait(AgentId agent) {
  std::lock_guard lock(mutex_);
  Agent& waiter = at(agent);
  if (waiter.state != State::kWaiting) return;
  waiter.state = State::kRunning;
  waiter.on_stall = nullptr;
}

WaitGraph::Agent& WaitGraph::at(AgentId agent) {
  CH_CHECK(agent >= 0 && agent < static_cast<AgentId>(agents_.size()))
      << "agent " << agent << " of " << agents_.size();
  return agents_[agent];
}

absl::Span<const AgentId> WaitGraph::WaitsFor(const Agent& agent) const {
  switch (agent.state) {
    case State::kWaiting:
      return agent.awaited;
    case State::kIdle:
      if (agent.issuer != kNoAgent) return {&agent.issuer, 1};
      return {};
    case State::kRunning:
    case State::kFinished:
      return {};
  }
  return {};
}

bool WaitGraph::IsStuck(AgentId from) {
  for (Agent& agent : agents_) agent.mark = Mark::kNew;
  path_.clear();
  return FindStuckPath(from);
}

bool WaitGraph::FindStuckPath(AgentId from) {
  path_.push_back(from);
  Agent& agent = at(from);
  if (agent.state == State::kFinished || agent.mark == Mark::kOnPath) {
    return true;
  }
  agent.mark = Mark::kOnPath;
  for (AgentId next : WaitsFor(agent)) {
    if (at(next).mark != Mark::kFree && FindStuckPath(next)) return true;
  }
  agent.mark = Mark::kFree;
  path_.pop_back();
  return false;
}

WaitGraph::Stalls WaitGraph::FindStalls(AgentId changed) {
  Stalls stalls;
  // Any agent stuck by this step waits on a path through `changed`. Usually
  // none is, and the search is short.
  if (!IsStuck(changed)) return stalls;
  for (size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    if (agent.state != State::kWaiting || agent.on_stall == nullptr) continue;
    if (!IsStuck(static_cast<AgentId>(i))) continue;
    stalls.found_.emplace_back(std::move(agent.on_stall), DescribePath());
    agent.on_stall = nullptr;
  }
  return stalls;
}

std::string WaitGraph::Label(AgentId agent) const {
  return absl::StrCat("rank ", agents_[agent].rank, " (", agents_[agent].name,
                      ")");
}

std::string WaitGraph::DescribePath() const {
  const std::string last = Label(path_.back());
  const bool finished = agents_[path_.back()].state == State::kFinished;
  // A rank that has finished is the cause, and the waits only lead to it.
  std::string text = finished ? absl::StrCat(last, " has finished") : "";
  const auto add = [&](const auto&... parts) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", parts...);
  };
  for (size_t i = 0; i + 1 < path_.size(); ++i) {
    const Agent& agent = agents_[path_[i]];
    const std::string next = Label(path_[i + 1]);
    if (agent.state == State::kWaiting) {
      add(Label(path_[i]), " waits for ", next, " in ", agent.what);
    } else {
      add(Label(path_[i]), " has no work until ", next, " issues some");
    }
  }
  if (!finished) add(last, " closes the cycle");
  return text;
}

}  // namespace crosshatch
