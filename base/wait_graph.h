// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_WAIT_GRAPH_H_
#define CROSSHATCH_BASE_WAIT_GRAPH_H_

/// \file
/// Who waits for whom inside one process whose ranks are threads. A stall is
/// found exactly, the moment the last agent that could have resolved it blocks
/// or finishes, and never by a timeout.
///
/// Exactness needs the graph to be true at every moment. So a wait begins and
/// ends under the lock of what is waited for: the waiter calls BeginWait while
/// it holds the lock under which it saw that it must wait, and whoever fulfils
/// the wait calls EndWait for the waiter under that lock, before it goes on to
/// anything else. (Were the end left to the waiter, who has yet to wake up, the
/// other could meanwhile block on something new and close a cycle that does not
/// exist.) For the same reason the issuer of work calls SetRunning for the
/// queue, and the queue SetIdle for itself, under the queue's lock.

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

/// The graph. Every wait is for ALL of the agents it names, so an agent is
/// stuck if and only if a path of waits leads from it to a cycle or to a
/// finished agent.
///
/// An idle queue waits for its issuer (the host thread of its rank), because
/// only that can give it work.
/// \threadsafety all members may be called from any thread.
class WaitGraph {
 public:
  /// Told why the wait can never end, on the thread whose step completed the
  /// stall and with no lock of the graph held. May run when the wait has just
  /// ended for another reason, so it owns what it touches and looks again.
  using OnStall = absl::AnyInvocable<void(const std::string& reason)>;

  /// The stalls that a step completed. Their callbacks run when this goes out
  /// of scope: at once where a step's result is not kept. A caller that holds a
  /// lock which a callback may take keeps it in a variable declared before the
  /// lock:
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
  /// \param name says which of its rank's agents it is, e.g. "host".
  /// \param issuer the agent that feeds it; kNoAgent for a host thread.
  AgentId AddAgent(int rank, std::string name, AgentId issuer);

  /// The agent has no more work for now (queues) and waits for its issuer.
  Stalls SetIdle(AgentId agent);
  void SetRunning(AgentId agent);
  /// The agent will never do anything again.
  Stalls SetFinished(AgentId agent);

  /// `agent`, which must not be waiting, blocks until all of `awaited` have
  /// done something. `what` says what it waits for, for people.
  /// \param on_stall null for a wait that only passes on what others do, as
  ///     for an event: who waits at a rendezvous can fail it and so release
  ///     everybody. Called at most once.
  Stalls BeginWait(AgentId agent, absl::Span<const AgentId> awaited,
                   std::string what, OnStall on_stall);
  /// Replaces the set of awaited agents of a wait in progress.
  Stalls UpdateWait(AgentId agent, absl::Span<const AgentId> awaited);
  /// The wait is fulfilled or given up; the agent runs. Does nothing if the
  /// agent is not waiting.
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
