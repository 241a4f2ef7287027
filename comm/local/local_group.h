// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_

/// \file
/// The state that the members of one group share when ranks are threads.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/local/late_wait.h"
#include "crosshatch/comm/local/rendezvous.h"
#include "crosshatch/comm/local/wake_word.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/comm/watch_clock.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

class LocalGroup;

/// Called with a failure found in a group, with no lock held. Returns the
/// members' error (Rendezvous::OnBroken).
using OnGroupBroken = std::function<absl::Status(const LocalGroup& group,
                                                 const absl::Status& failure)>;

/// One group. For each collective the members meet at a rendezvous, where the
/// last one compares their fingerprints. Then each member copies its data from
/// the peers' memory to their final place, and all leave together. No data move
/// before all agree. Once data move, nothing stops the collective, so no peer
/// reads the memory of a member that has left.
///
/// On devices with queues of their own the ranks' threads meet when they issue
/// the collective. By events, each queue then waits for the work that the
/// peers' queues hold before the collective, and later work waits for the
/// peers' part of it. So a queue waits only for issued work and cannot stall.
/// Only a rendezvous of threads can, and the wait graph finds that.
class LocalGroup {
 public:
  /// \param host_agents the members' host threads, by index.
  LocalGroup(WaitGraph* graph, const GroupKey& key,
             std::vector<AgentId> host_agents, OnGroupBroken on_broken);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// Binds `member`'s collectives to `agent`.
  /// \param queue null, or the device's queue that `member`'s part is issued
  ///     to; the same for all members.
  void Bind(int member, AgentId agent, Stream* queue) {
    collectives_.SetAgent(member, agent);
    slots_[member].queue = queue;
  }

  /// \name One collective of `member`
  /// @{
  /// Shows the others `collective`, which must not change until Move returns.
  void Offer(int member, const Collective& collective);
  /// Waits for the others. \error why the group has failed.
  absl::Status Agree(int member, const Fingerprint& fingerprint);
  /// Moves `member`'s part of the data on the calling thread, or issues it to
  /// `member`'s queue.
  void Move(int member, int64_t sequence, const KernelTable& kernels);
  /// @}

  /// See ControlGroup::Gather.
  absl::StatusOr<std::vector<std::string>> Gather(int member,
                                                  const std::string& blob,
                                                  const std::string& what);

  void Fail(const absl::Status& failure);
  /// Returns the waits of at least `least`. Called by the watchdog.
  std::vector<LateWait> FindLate(const WatchMoment& now, absl::Duration least);

 private:
  /// What a member shows the others while a collective runs. The member writes
  /// it before the rendezvous.
  struct Slot {
    const Collective* collective = nullptr;
    const std::string* blob = nullptr;
    Stream* queue = nullptr;
    // In its queue: before the collective, after its sum, after its part.
    Event before;
    Event summed;
    Event after;
    /// For the watchdog, after the rendezvous.
    InFlight in_collective;
    InFlight in_gather;
  };

  const Collective& of(int member) const { return *slots_[member].collective; }

  void MoveData(int me, const KernelTable& kernels, Stream* queue);
  void AllReduce(int me, const KernelTable& kernels, Stream* queue);
  void Copy(const SegmentList& from, const SegmentList& to, int64_t begin,
            int64_t count, DType dtype, const KernelTable& kernels,
            Stream* queue);
  void Reduce(int me, absl::FunctionRef<const SegmentList&(int rank)> of_rank,
              int64_t begin, int64_t count, const KernelTable& kernels,
              Stream* queue);
  /// Waits until all members have come to `point` of the collective, or lets
  /// `queue` wait until their queues have.
  void Join(int me, Event Slot::*point, Stream* queue);
  void AwaitPeers(int me, Event Slot::*point, Stream& queue);
  /// Returns which members have not left the collective or gathering that all
  /// came to, by `in_flight` of their slots.
  std::optional<LateWait> FindInside(InFlight Slot::*in_flight,
                                     const WatchMoment& now,
                                     absl::Duration least);

  const std::string group_;
  const std::vector<int> world_ranks_;
  const OnGroupBroken on_broken_;
  Rendezvous collectives_;
  ThreadBarrier barrier_;
  Rendezvous gathers_;
  ThreadBarrier gather_barrier_;
  std::vector<Slot> slots_;
  /// By member; owned by its communicator.
  std::vector<const Fingerprint*> fingerprints_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
