// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAIT_GRAPH_H_
#define CROSSHATCH_BASE_WAIT_GRAPH_H_

/// \file
/// WaitGraph: which agent waits for which, in a process whose ranks are
/// threads. It detects a deadlock exactly, when the last agent that could
/// resolve it blocks or finishes, and without a timeout.
///
/// The graph must be exact at every moment. Therefore a wait begins and ends
/// under the lock of the awaited state. The waiter calls BeginWait while it
/// holds the lock under which it decided to wait. The agent that fulfils the
/// wait calls EndWait for the waiter under the same lock, before anything else.
/// (If the waiter called EndWait after waking up, the other agent could block
/// meanwhile and close a cycle that does not exist.) For the same reason the
/// issuer of work calls SetRunning for the queue, and the queue calls SetIdle
/// for itself, under the queue's lock.

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"

namespace crosshatch {

/// Index of an agent: the host thread of a rank, or the worker of one of its
/// stream queues.
using AgentId = int;
inline constexpr AgentId kNoAgent = -1;

/// A graph of waits. Each wait is for ALL of its agents, so an agent is stuck
/// if and only if a path of waits leads from it to a cycle or to a finished
/// agent.
///
/// An idle queue waits for its issuer, the host thread of its rank, because
/// only that thread gives it work.
/// \threadsafety all members may be called from any thread.
class WaitGraph {
 public:
  /// Receives the reason why the wait can never end, on the thread whose step
  /// completed the deadlock, without a lock of the graph. The wait may just
  /// have ended for another reason, so the callback owns its state and checks
  /// again.
  using OnStall = absl::AnyInvocable<void(const std::string& reason)>;

  /// The deadlocks that a step completed. Their callbacks run when this object
  /// is destroyed. A caller that holds a lock which a callback takes declares
  /// the object before the lock:
  ///
  ///     WaitGraph::Stalls stalls;
  ///     std::lock_guard lock(mutex_);
  ///     stalls = graph.BeginWait(...);
  class Stalls {
   public:
    Stalls() = default;
    Stalls(Stalls&&) = default;
    Stalls& operator=(Stalls&& other);
    ~Stalls() { Run(); }

    /// Runs the callbacks now.
    void Run();

   private:
    friend class WaitGraph;
    std::vector<std::pair<OnStall, std::string>> found_;
  };

  /// Adds an agent in the running state.
  /// \param name of the agent within its rank, e.g. "host".
  /// \param issuer the agent that gives it work; kNoAgent for a host thread.
  AgentId AddAgent(int rank, std::string name, AgentId issuer);

  /// Marks a queue as out of work: it waits for its issuer.
  Stalls SetIdle(AgentId agent);
  void SetRunning(AgentId agent);
  /// Marks the agent as finished for good.
  Stalls SetFinished(AgentId agent);

  /// Records that `agent`, which must not be waiting, blocks until all of
  /// `awaited` have acted. `what` describes the wait in messages.
  /// \param on_stall called at most once. Null for waits that cannot be failed,
  ///     such as for an event; a waiter at a rendezvous can fail it, which
  ///     releases all members.
  Stalls BeginWait(AgentId agent, absl::Span<const AgentId> awaited,
                   std::string what, OnStall on_stall);
  /// Replaces the awaited agents of a wait in progress.
  Stalls UpdateWait(AgentId agent, absl::Span<const AgentId> awaited);
  /// Ends the wait of `agent`, fulfilled or given up. Does nothing if the agent
  /// is not waiting.
  void EndWait(AgentId agent);

 private:
  enum class State : uint8_t { kRunning, kIdle, kWaiting, kFinished };
  enum class Mark : uint8_t { kNew, kOnPath, kFree };
  struct Agent {
    int rank;
    std::string name;
    AgentId issuer;
    State state = State::kRunning;
    std::vector<AgentId> awaited;
    std::string what;
    OnStall on_stall;
    Mark mark = Mark::kNew;
  };

  // All need mutex_.
  Agent& at(AgentId agent);
  absl::Span<const AgentId> WaitsFor(const Agent& agent) const;
  bool IsStuck(AgentId from);
  bool FindStuckPath(AgentId from);
  Stalls FindStalls(AgentId changed);
  std::string Label(AgentId agent) const;
  std::string DescribePath() const;

  std::mutex mutex_;
  std::vector<Agent> agents_;
  // The search's current path; after a find, the path found. Ends with an agent
  // that is finished or occurs earlier in the path.
  std::vector<AgentId> path_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_WAIT_GRAPH_H_
