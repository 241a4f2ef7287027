// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_

/// \file
/// The state that the members of one group share when ranks are threads.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/local/late_wait.h"
#include "crosshatch/comm/local/rendezvous.h"
#include "crosshatch/comm/local/wake_word.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

class LocalHub;

/// One group. For each collective the members come to a rendezvous. Then each
/// copies its data from the peers' memory to their final place, and all leave
/// together (local_planes.h). No data move before all agree. Once data move,
/// nothing stops the collective, so no peer reads the memory of a member that
/// has left.
struct LocalGroup {
  /// One member's operands, for the other members. Written before the
  /// rendezvous.
  struct Slot {
    const Collective* collective = nullptr;
    const Fingerprint* fingerprint = nullptr;
    /// Null, or the device's queue that the member's part is issued to; the
    /// same for all members.
    Stream* queue = nullptr;
    // In its queue: before the collective, after its sum, after its part.
    Event before;
    Event summed;
    Event after;
    /// For the watchdog, after the rendezvous.
    InFlight in_flight;
  };

  /// \param hub fails with the group; must outlive issued work
  /// \param host_agents the members' host threads, by index
  /// \param group_timeout the longest time that a member may keep the others
  /// waiting
  LocalGroup(LocalHub& hub, const GroupKey& key,
             const std::vector<AgentId>& host_agents,
             absl::Duration group_timeout);

  int size() const { return static_cast<int>(world_ranks.size()); }

  void Fail(const absl::Status& failure);
  /// Returns the waits of at least `least`. Called by the watchdog.
  std::vector<LateWait> FindLate(const WatchMoment& now, absl::Duration least);

  const std::string description;
  const std::vector<int> world_ranks;
  const absl::Duration timeout;
  Rendezvous collectives;
  Rendezvous exchanges;
  ThreadBarrier barrier;
  std::vector<Slot> slots;

 private:
  /// Returns the members that have not left a collective that all have entered.
  std::optional<LateWait> FindInside(const WatchMoment& now,
                                     absl::Duration least);
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
