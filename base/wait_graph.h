// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAIT_GRAPH_H_
#define CROSSHATCH_BASE_WAIT_GRAPH_H_

/// \file
/// Who waits for whom inside one process whose ranks are threads. A stall is
/// found exactly, the moment the last agent that could have resolved it blocks
/// or finishes, and never by a timeout.

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"

namespace crosshatch {

/// Index of an agent: the host thread of a rank, or the worker of one of its
/// stream queues.
using AgentId = int;
inline constexpr AgentId kNoAgent = -1;

/// The graph. Every wait is for ALL of the agents it names, so an agent is
/// stuck if and only if a path of waits leads from it to a cycle or to a
/// finished agent.
///
/// An idle queue waits for its issuer (the host thread of its rank), because
/// only that can give it work.
/// \threadsafety all members may be called from any thread.
class WaitGraph {
 public:
  /// Told, on the thread whose step completed the stall and with no lock of the
  /// graph held, why the wait can never end.
  using OnStall = absl::AnyInvocable<void(const std::string& reason)>;

  /// Adds an agent in the running state.
  /// \param issuer the agent that feeds it; kNoAgent for a host thread.
  AgentId AddAgent(int rank, std::string name, AgentId issuer);

  /// The agent has no more work for now (queues) and waits for its issuer.
  void SetIdle(AgentId agent);
  void SetRunning(AgentId agent);
  /// The agent will never do anything again.
  void SetFinished(AgentId agent);

  /// `agent` blocks until all of `awaited` have done something. `what` says
  /// what it waits for, for people. `on_stall` runs at most once, and only
  /// until EndWait.
  void BeginWait(AgentId agent, absl::Span<const AgentId> awaited,
                 std::string what, OnStall on_stall);
  /// Replaces the set of awaited agents of a wait in progress.
  void UpdateWait(AgentId agent, absl::Span<const AgentId> awaited);
  void EndWait(AgentId agent);

 private:
  enum class State : uint8_t { kRunning, kIdle, kWaiting, kFinished };
  struct Agent {
    int rank;
    std::string name;
    AgentId issuer;
    State state = State::kRunning;
    std::vector<AgentId> awaited;
    std::string what;
    OnStall on_stall;
  };

  std::mutex mutex_;
  std::vector<Agent> agents_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_WAIT_GRAPH_H_
