// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_

/// \file
/// What the communicators of one group share when ranks are threads.

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

/// Told of a failure found in a group, with no lock held; gives what its
/// members are told (Rendezvous::OnBroken).
using OnGroupBroken = std::function<absl::Status(const LocalGroup& group,
                                                 const absl::Status& failure)>;

/// One group. Each collective is a meeting at which the last to come compares
/// what all are about to do; then every rank takes its own data straight from
/// the peers' memory to its final place; then all leave together. No data moves
/// before all agree, and once it moves nothing stops it, so whoever leaves,
/// with success or failure, is read by nobody.
///
/// On devices with queues of their own the ranks' threads meet when they issue
/// the collective. What each then issues to its queue waits, by events, for
/// what the peers' queues hold before the collective, and what comes after it
/// for the peers' part of it. So a queue waits only for what has been issued,
/// and no queue can stall: all that can is a meeting of threads, which the wait
/// graph knows.
class LocalGroup {
 public:
  /// \param host_agents of the members' host threads, by index.
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
  /// Shows the others `collective`, which stays as it is until Move returns.
  void Offer(int member, const Collective& collective);
  /// Waits for the others. \error why the group has failed.
  absl::Status Agree(int member, const Fingerprint& fingerprint);
  /// Does `member`'s part on the calling thread. Returns when it is done, or
  /// issued to `member`'s queue.
  void Move(int member, int64_t sequence, const KernelTable& kernels);
  /// @}

  /// See ControlGroup::Gather.
  absl::StatusOr<std::vector<std::string>> Gather(int member,
                                                  const std::string& blob,
                                                  const std::string& what);

  void Fail(const absl::Status& failure);
  /// For a watch, at each look: what members have waited for at least `least`.
  std::vector<LateWait> FindLate(const WatchMoment& now, absl::Duration least);

 private:
  /// What a member shows the others while a collective runs. Written by the
  /// member before it meets the others.
  struct Slot {
    const Collective* collective = nullptr;
    const std::string* blob = nullptr;
    Stream* queue = nullptr;
    // Of its queue: before the collective, after its sum, after its part.
    Event before;
    Event summed;
    Event after;
    /// What the watch sees of it once it has met the others.
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
  /// All members have come to `point` of the collective, or their queues do
  /// before `queue` goes on.
  void Join(int me, Event Slot::*point, Stream* queue);
  void AwaitPeers(int me, Event Slot::*point, Stream& queue);
  /// Which members have not left what all came to, by `in_flight` of their
  /// slots.
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
  /// By member; each is its own communicator's.
  std::vector<const Fingerprint*> fingerprints_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
