// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_
#define CROSSHATCH_COMM_LOCAL_LOCAL_GROUP_H_

/// \file
/// What the communicators of one group share when ranks are threads.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/fingerprint.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/local/rendezvous.h"
#include "crosshatch/comm/local/thread_barrier.h"
#include "crosshatch/comm/segment_cursor.h"
#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

class LocalGroup;

/// Told of a failure found in a group, with no lock held.
using OnGroupBroken =
    std::function<void(const LocalGroup& group, const absl::Status& failure)>;

/// One group. Each collective is a meeting at which the last to come compares
/// what all are about to do; then every rank takes its own data straight from
/// the peers' memory to its final place; then all leave together. No data moves
/// before all agree, and once it moves nothing stops it, so whoever leaves,
/// with success or failure, is read by nobody.
class LocalGroup {
 public:
  /// \param host_agents of the members' host threads, by index.
  LocalGroup(WaitGraph* graph, const GroupKey& key,
             std::vector<AgentId> host_agents, OnGroupBroken on_broken);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// `member`'s collectives run on `agent`.
  void SetAgent(int member, AgentId agent) {
    collectives_.SetAgent(member, agent);
  }

  /// Does `member`'s part of a collective on the calling thread; returns when
  /// it is done. \error why the group has failed.
  absl::Status Run(int member, const Collective& collective,
                   const Fingerprint& fingerprint, const KernelTable& kernels);

  /// See Transport::Gather.
  absl::StatusOr<std::vector<std::string>> Gather(int member,
                                                  const std::string& blob,
                                                  const std::string& what);

  void Fail(const absl::Status& failure);
  void CheckDeadline(Rendezvous::Clock::time_point now, absl::Duration timeout);

 private:
  /// What a member shows the others while a collective runs. Written by the
  /// member before it meets the others.
  struct Slot {
    const Collective* collective = nullptr;
    const std::string* blob = nullptr;
  };

  const Collective& of(int member) const { return *slots_[member].collective; }

  void Move(int me, const KernelTable& kernels);
  void AllReduce(int me, const KernelTable& kernels);

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
