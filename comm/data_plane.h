// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_DATA_PLANE_H_
#define CROSSHATCH_COMM_DATA_PLANE_H_

/// \file
/// DataPlane: what moves the data of collectives once all members agree.
/// Everything else is the same for each data plane: Communicator checks and
/// issues collectives, and the control plane (comm/control_plane.h) lets ranks
/// agree, wait, fail, and name who is missing.
/// docs/adding_an_engine.md goes through an example.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// What the members of a group sent one another as they agreed on a collective.
class Payloads {
 public:
  virtual ~Payloads() = default;
  /// Returns what `member` sent to this one; empty if nothing. Aligned to 16
  /// bytes.
  virtual absl::string_view Of(int member) const = 0;
};

/// Returns room for `bytes` that go to `member`, aligned to 16 bytes. Called
/// once for a member, and not for this one.
using PayloadRoom = absl::FunctionRef<char*(int member, int64_t bytes)>;

/// One member's end of one group.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  /// Prepares `collective`, which is issued next if all members agree, and
  /// writes what is to go along with the agreement: some kilobytes at most,
  /// which cost no message of their own. Not called before a first collective
  /// to which the members have yet to connect (DataPlanes::Connect).
  virtual void Offer(const Collective& /*collective*/, PayloadRoom /*room*/) {}

  /// Issues this member's part of `collective`, on which all members agree.
  /// Called in one order on all members. For a device: on the rank's thread; it
  /// enqueues to `queue` and returns. For host memory: on the worker of
  /// `queue`; it returns when the data are in place and no peer reads this
  /// member's memory any more, with success as with an error.
  /// \param sequence of the collective in its group, for messages.
  /// \param payloads what the members offered.
  /// \error why the group fails; after Abort it is dropped.
  virtual absl::Status Issue(const Collective& collective, int64_t sequence,
                             const Payloads& payloads, Stream& queue) = 0;

  /// Ends what has been issued without completing it, so that the queue goes
  /// on. An Issue under way returns soon. Nothing more is issued. \threadsafety
  /// any thread.
  virtual void Abort() = 0;

  /// Checks what has been issued to a device.
  /// \error why it cannot complete, naming the oldest collective that has not:
  ///     kUnavailable if a member has gone, kDeadlineExceeded if none completes
  ///     within the timeout.
  /// \threadsafety any thread.
  virtual absl::Status Poll() { return absl::OkStatus(); }

  /// Returns which of the latest collectives the device has completed, for
  /// messages: "has done all_reduce #4 'a', and not all_reduce #5 'b'". Empty
  /// before the first.
  /// \threadsafety any thread.
  virtual std::string Recent() { return ""; }

  /// Drops what refers to the memory of the rank's context, which is destroyed.
  /// What was issued has ended, and nothing more is issued.
  virtual void LeaveMemory() {}
};

/// The data planes of one rank. Outlives the job.
class DataPlanes {
 public:
  /// Sends `blob` to all members of a group; returns their blobs by member.
  using Exchange =
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>;

  virtual ~DataPlanes() = default;

  /// "nccl", which World::engine returns.
  virtual const std::string& name() const = 0;

  /// Returns whether the planes move memory that the host addresses, and not
  /// that of devices.
  virtual bool moves_host_memory() const { return true; }

  /// Returns whether Connect exchanges nothing. Then it is called before the
  /// members agree on their first collective, and else after that.
  virtual bool connects_alone() const { return false; }

  /// Returns this rank's end of a group, at its first collective. All members
  /// call it at the same place.
  /// \param context of this rank; outlives what is issued.
  /// \param timeout bounds what has been issued.
  /// \param exchange may be called as often on each member, in one order.
  virtual absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) = 0;

  /// Prepares the groups of `groups`, one for each axis of a mesh that has more
  /// than one rank. All of `world_ranks` call this at one time, each with as
  /// many: its group of every such axis, or an empty one where it has none. The
  /// order in a group is that of its members.
  virtual absl::Status Split(const std::vector<int>& /*world_ranks*/,
                             const std::vector<std::vector<int>>& /*groups*/,
                             RankContext& /*context*/,
                             absl::Duration /*timeout*/,
                             Exchange /*exchange*/) {
    return absl::OkStatus();
  }

  /// Drops what Split prepared for the job of `context`, which has failed,
  /// without waiting for peers. Called by the rank's thread, which divides and
  /// connects nothing more.
  virtual void Abort(RankContext& /*context*/) {}
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_DATA_PLANE_H_
