// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_DATA_PLANE_H_
#define CROSSHATCH_COMM_DATA_PLANE_H_

/// \file
/// DataPlane: moves the data of collectives once all members agree. The rest is
/// the same for each data plane: Communicator checks and issues collectives,
/// and the control plane (comm/control_plane.h) handles agreement, waiting and
/// failures. docs/adding_an_engine.md explains an example.

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

/// The payloads that the members of a group exchanged with their agreement.
class Payloads {
 public:
  virtual ~Payloads() = default;
  /// Returns the payload from `member` to this one; empty if there is none.
  /// Aligned to 16 bytes.
  virtual absl::string_view Of(int member) const = 0;
};

/// Returns memory for a payload of `bytes` to `member`, aligned to 16 bytes.
/// Called at most once for each other member.
using PayloadRoom = absl::FunctionRef<char*(int member, int64_t bytes)>;

/// Moves the data of one member of a group.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  /// Prepares `collective`, which is issued next if all members agree, and
  /// writes the payloads that are sent with the agreement. Payloads of up to
  /// some kilobytes cost no extra message.
  virtual void Offer(const Collective& /*collective*/, PayloadRoom /*room*/) {}

  /// Issues this member's part of `collective`, on which all members agree. All
  /// members call it in the same order. For a device, it runs on the rank's
  /// thread, enqueues to `queue` and returns. For host memory, it runs on the
  /// worker of `queue`. It returns when the data are in place and no peer reads
  /// this member's memory any more, even after an error.
  /// \param sequence number of the collective in its group, for messages
  /// \param payloads of the members' offers
  /// \error why the group fails; ignored after Abort
  virtual absl::Status Issue(const Collective& collective, int64_t sequence,
                             const Payloads& payloads, Stream& queue) = 0;

  /// Ends issued work without completing it, so that the queue continues. A
  /// running Issue returns soon, and nothing more is issued.
  /// \threadsafety any thread.
  virtual void Abort() = 0;

  /// Checks work that was issued to a device.
  /// \error why it cannot complete, naming the oldest incomplete collective:
  ///     kUnavailable if a member is lost, kDeadlineExceeded if none completes
  ///     within the timeout.
  /// \threadsafety any thread.
  virtual absl::Status Poll() { return absl::OkStatus(); }

  /// Returns which of the latest collectives the device has completed, for
  /// messages: "has done all_reduce #4 'a', and not all_reduce #5 'b'". Empty
  /// before the first.
  /// \threadsafety any thread.
  virtual std::string Recent() { return ""; }

  /// Drops references to the memory of the rank's context, which is being
  /// destroyed. Issued work has ended, and nothing more is issued.
  virtual void LeaveMemory() {}
};

/// The data planes of one rank. Must outlive the job.
class DataPlanes {
 public:
  /// Sends `blob` to all members of a group; returns their blobs by member.
  using Exchange =
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>;

  virtual ~DataPlanes() = default;

  /// Returns the name for World::engine, such as "nccl".
  virtual const std::string& name() const = 0;

  /// Returns whether the planes move host memory; otherwise they move memory of
  /// devices.
  virtual bool moves_host_memory() const { return true; }

  /// Returns whether Connect exchanges nothing. If so, it is called before the
  /// members agree on their first collective; otherwise after it.
  virtual bool connects_alone() const { return false; }

  /// Returns whether streams can capture its collectives (step_capture.h): each
  /// rank issues its part without the others, and nothing of it is done by the
  /// host.
  virtual bool can_be_captured() const { return false; }

  /// Connects this rank to a group, at its first collective. All members call
  /// it.
  /// \param context of this rank; must outlive issued work
  /// \param timeout of issued collectives
  /// \param exchange may be called, equally often on each member, in one order
  virtual absl::StatusOr<std::unique_ptr<DataPlane>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) = 0;

  /// Prepares `groups`, one for each axis of a mesh that has more than one
  /// rank. All of `world_ranks` call it together. Each passes its group of each
  /// axis, with the members in order, or an empty list.
  virtual absl::Status Split(const std::vector<int>& /*world_ranks*/,
                             const std::vector<std::vector<int>>& /*groups*/,
                             RankContext& /*context*/,
                             absl::Duration /*timeout*/,
                             Exchange /*exchange*/) {
    return absl::OkStatus();
  }

  /// Drops what Split prepared for the failed job of `context`, without waiting
  /// for peers. The rank's thread calls it, and splits and connects nothing
  /// more.
  virtual void Abort(RankContext& /*context*/) {}
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_DATA_PLANE_H_
