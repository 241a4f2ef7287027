// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_DEVICE_MOVER_H_
#define CROSSHATCH_COMM_DEVICE_MOVER_H_

/// \file
/// What moves the data of collectives from device to device, beside an engine
/// whose ranks meet, compare and fail by other means (comm/mpi): the data plane
/// to its control plane.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// One member's end of one group.
class DeviceMover {
 public:
  virtual ~DeviceMover() = default;

  /// How this member's lists are cut, as one number: where it is the same and
  /// not 0 on all members, they may exchange the pieces of the lists as they
  /// lie. Pure.
  virtual uint64_t ShapeOf(const Collective& collective) const = 0;

  /// Issues this member's part of `collective`, on which all have agreed, to
  /// `queue`, and returns. Called by the rank's thread, in one order.
  /// \param sequence of the collective in its group, for messages.
  /// \param same_shape whether ShapeOf is the same on all members and not 0.
  virtual absl::Status Issue(const Collective& collective, int64_t sequence,
                             bool same_shape, Stream& queue) = 0;

  /// Looks at what has been issued.
  /// \error why it cannot go on, with the oldest that has not: kUnavailable
  ///     where a member has gone, kDeadlineExceeded where none comes to an end
  ///     within the timeout.
  /// \threadsafety any thread.
  virtual absl::Status Poll() = 0;

  /// What the device has done of the latest that was issued, and what it has
  /// not, for messages: "has done all_reduce #4 'a', and not all_reduce #5
  /// 'b'". Empty before the first.
  /// \threadsafety any thread.
  virtual std::string Recent() = 0;

  /// The memory of the rank's context goes: what was issued has ended, nothing
  /// more is issued, and nothing refers to the memory any more.
  virtual void LeaveMemory() = 0;

  /// What has been issued ends without being done, so that the queue goes on;
  /// nothing more is issued.
  /// \threadsafety any thread.
  virtual void Abort() = 0;
};

/// Makes the ends of one rank. Outlives the job.
class DeviceMovers {
 public:
  /// Tells all members of a group `blob`; gives by member what they tell.
  using Exchange =
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>;

  virtual ~DeviceMovers() = default;

  /// "nccl", which World::engine says.
  virtual const std::string& name() const = 0;

  /// Makes ready the groups of `groups`, one for each axis of a mesh that has
  /// more than one rank; all of `world_ranks` call this at one time, each with
  /// as many: its group of every such axis, or an empty one where it has none.
  /// The order in a group is that of its members.
  virtual absl::Status Divide(const std::vector<int>& world_ranks,
                              const std::vector<std::vector<int>>& groups,
                              RankContext& context, absl::Duration timeout,
                              Exchange exchange) = 0;

  /// This rank's end of a group, whose members all call this at one time.
  /// \param context of this rank; outlives what is issued.
  /// \param timeout how long what has been issued may take.
  virtual absl::StatusOr<std::unique_ptr<DeviceMover>> Connect(
      const GroupKey& key, int member, RankContext& context,
      absl::Duration timeout, Exchange exchange) = 0;

  /// The job of `context` has failed, and peers may have gone: what Divide made
  /// for it goes without waiting for them. Called by the rank's thread, which
  /// divides and connects nothing more.
  virtual void Abort(RankContext& context) = 0;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_DEVICE_MOVER_H_
