// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COMMUNICATOR_H_
#define CROSSHATCH_COMM_COMMUNICATOR_H_

/// \file
/// The contract of collectives: Communicator, the same class on every engine.
/// An engine is a control plane and a data plane; `local` runs ranks as
/// threads, `mpi` as processes, `nccl` as processes on GPUs, `fake` one rank by
/// itself. All pass one suite, conformance_testutil.h.
///
/// Rules for callers:
/// - All members issue the same collectives in the same order on one
///   communicator. Sequence numbers are taken at issue. A difference in kind,
///   dtype, counts, op, root or label, a missing member, a stall and a dead
///   member are errors on every member, which name both sides. Nothing hangs.
///   A difference is found when the last member arrives. A stall of rank
///   threads is found when it is certain. A dead process is found when its
///   connection to the coordinator ends or is silent (comm/coordination). A
///   member that keeps the others waiting is found after the group's timeout
///   (World::SetTimeout, or JobOptions::timeout) and the watchdog's interval:
///   an eighth of the timeout, at most a second.
/// - One communicator is used on one stream, and by its rank's thread.
/// - The memory of a collective must stay leased, in stream order, until the
///   collective has completed.
/// - An error found at issue (a negative count) is returned. A later error
///   poisons the rank's context, and is returned instead of a result. A
///   poisoned rank fails its groups, so that no member waits for it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/collective.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

class ControlGroup;
class DataPlane;
class DataPlanes;
class RankContext;
struct Fingerprint;

/// A rank's traffic on one communicator: calls, and the bytes that the rank
/// receives (BytesReceived). Both are counted at issue, so that every engine, a
/// dry run included, gives the same numbers.
struct CommunicatorStats {
  struct Count {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  /// By CollectiveKind.
  Count by_kind[kNumCollectiveKinds];
};

/// One member of a group.
/// \threadsafety the rank's thread only, except Abort.
class Communicator final {
 public:
  /// \param member this rank's index in `key`
  /// \param context of this rank; like `planes`, it must outlive issued work
  /// \param timeout of issued collectives
  Communicator(GroupKey key, int member, RankContext& context,
               std::unique_ptr<ControlGroup> control, DataPlanes& planes,
               absl::Duration timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// E.g. "tp".
  const std::string& name() const { return key_.name; }
  /// Returns this rank's index in the group.
  int rank() const { return member_; }
  int size() const { return key_.size(); }
  const std::vector<int>& world_ranks() const { return key_.world_ranks; }

  /// Returns "group 'tp' (ranks 0, 2)", for messages.
  std::string Describe() const;

  /// Issues `collective` to `stream`: checks it, takes the next sequence
  /// number, counts and logs it. The stream then agrees with the other members
  /// and issues this one's part to the data plane. On a poisoned rank nothing
  /// is issued, the group fails, and the result is OK: the error is returned
  /// later, instead of a result.
  ///
  /// local: completes in stream order when this rank's data are in place and no
  ///     peer reads its memory any more. Sums add ranks 0..n-1 in order, in
  ///     float32 for the 16-bit types, so results are bitwise the same in every
  ///     run. Data move once, from the peer's memory to their final place.
  /// mpi, ucx: the same, with the same bits. Data in one run of memory are sent
  ///     and received in place (docs/mpi.md).
  /// nccl: the same, on the device's queue; sums in an order of NCCL's own
  ///     unless the engine is deterministic (NcclOptions).
  /// fake: counts and logs, moves nothing.
  /// \error kInvalidArgument for lists that do not fit the kind.
  /// Later, as poison: kFailedPrecondition if ranks differ, a rank has finished
  /// or all wait in a circle; kDeadlineExceeded; kAborted if another group or
  /// rank failed, with its message.
  absl::Status Issue(Collective collective, Stream& stream);

  /// Gathers a small blob from every member, by index: metadata such as meshes
  /// and counts. Blocks the calling thread; not ordered with any stream.
  /// \param blob of any size; those of the members may differ
  /// \param label compared between ranks
  /// \error the failure of the group
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& blob,
                                                    const std::string& label);

  /// Fails the group: every member's pending and later collectives end with
  /// `error`, which must not be OK, and the name of this rank.
  /// \threadsafety any thread.
  void Abort(const absl::Status& error);

  const CommunicatorStats& stats() const { return stats_; }

 private:
  void CheckThread() const;
  void BindTo(Stream& stream);
  void Count(const Collective& collective);
  void CountBytes(CollectiveKind kind, int64_t bytes);
  /// Registers what a replay of the step being captured repeats.
  void Capture(const Collective& collective);
  /// Runs `collective` when the stream has come to it.
  void Run(const Collective& collective, int64_t sequence);
  /// Agrees with the other members and issues this one's part.
  absl::Status AgreeAndIssue(const Collective& collective, int64_t sequence);
  absl::Status Connect();

  const GroupKey key_;
  const int member_;
  RankContext& context_;
  const std::unique_ptr<ControlGroup> control_;
  DataPlanes& planes_;
  const absl::Duration timeout_;

  // For the rank's thread only.
  Stream* stream_ = nullptr;
  int64_t next_sequence_ = 0;
  CommunicatorStats stats_;

  // For the thread that runs the stream's tasks only. Describes the collective
  // that the stream has reached.
  const std::unique_ptr<Fingerprint> fingerprint_;
  /// Null before the first collective.
  std::shared_ptr<DataPlane> plane_;
};

/// \name The common collectives on contiguous buffers
/// Elements are of `dtype`; `stream` is as for Issue.
/// @{

/// Gathers `count` elements of each member to `recv`, those of rank r from
/// element r * count on.
absl::Status AllGather(Communicator& comm, const void* send, void* recv,
                       int64_t count, DType dtype, Stream& stream,
                       std::string label);
/// Reduces size() * count elements of each member. `recv` receives `count` of
/// them, from element rank() * count on.
absl::Status ReduceScatter(Communicator& comm, const void* send, void* recv,
                           int64_t count, DType dtype, ReduceOp op,
                           Stream& stream, std::string label);
/// Reduces `count` elements in place.
absl::Status AllReduce(Communicator& comm, void* data, int64_t count,
                       DType dtype, ReduceOp op, Stream& stream,
                       std::string label);
/// Copies `count` elements of `root`'s data to all members.
absl::Status Broadcast(Communicator& comm, void* data, int64_t count,
                       DType dtype, int root, Stream& stream,
                       std::string label);
/// Completes when all members have issued it.
absl::Status Barrier(Communicator& comm, Stream& stream, std::string label);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COMMUNICATOR_H_
