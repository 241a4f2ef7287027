// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COMMUNICATOR_H_
#define CROSSHATCH_COMM_COMMUNICATOR_H_

/// \file
/// The contract of collectives. Engines (local, fake, mpi, nccl) implement one
/// class, Communicator, and pass one suite, conformance_testutil.h.
///
/// A collective is a value, `Collective`: what to do, on which memory. All data
/// is named by lists of segments, so that a transfer reads from and writes to
/// its final place whatever the layout; a contiguous buffer is the list of one.
///
/// Rules for callers:
/// - All members issue the same collectives in the same order on one
///   communicator. Sequence numbers are taken at issue. A difference in kind,
///   dtype, counts, op, root or label, a member that is missing, a stall and a
///   dead member are errors on every member, within bounded time, naming both
///   sides; nothing hangs.
/// - One communicator is used on one stream.
/// - Memory named by a collective must stay leased, in the order of its stream,
///   until the stream has passed it.
/// - An error found at issue (a negative count) is returned. Whatever goes
/// wrong
///   later poisons the rank's context, and the error comes out where a result
///   would; a poisoned rank fails its groups, so nobody waits for it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// `runs` runs of `run_elems` contiguous elements, starting `stride_elems`
/// apart. Counted in elements of the collective's dtype. Runs do not overlap.
struct Segment {
  void* data = nullptr;
  int64_t run_elems = 0;
  int64_t runs = 1;
  int64_t stride_elems = 0;

  int64_t elems() const { return run_elems * runs; }
};
using SegmentList = absl::InlinedVector<Segment, 1>;

/// Elements of a list.
int64_t NumElements(absl::Span<const Segment> segments);

enum class CollectiveKind : uint8_t {
  /// recv[r] takes all of rank r's send[0].
  kAllGather,
  /// recv[0] takes the reduction over ranks r of r's send[this rank].
  kReduceScatter,
  /// recv[0] takes the reduction over ranks r of r's send[0]. send[0] and
  /// recv[0] may be the same segments (in place).
  kAllReduce,
  /// recv[r] takes r's send[this rank]. Lists may be empty.
  kAllToAll,
  /// recv[0] takes the root's send[0] on every rank; the root's own recv[0] may
  /// be empty.
  kBroadcast,
  /// Completes when all have arrived.
  kBarrier,
};
inline constexpr int kNumCollectiveKinds = 6;

/// "all_gather", "reduce_scatter", ...
const char* Name(CollectiveKind kind);

/// One collective of one rank. Lists are matched element by element in order;
/// how a list is cut into segments may differ between the two sides, the number
/// of elements may not.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kFloat32;
  /// kReduceScatter and kAllReduce, on any dtype but bool. kAvg divides by the
  /// group's size (floating point only).
  ReduceOp reduce_op = ReduceOp::kSum;
  /// Multiplies the reduction once at its end (in float32 or wider; floating
  /// point only), for gradients that are averaged over another count than the
  /// group's size.
  double scale = 1.0;
  /// kBroadcast.
  int root = 0;
  /// Names the tensor or group concerned; compared between ranks and printed in
  /// errors and logs.
  std::string label;

  std::vector<SegmentList> send;
  std::vector<SegmentList> recv;
};

/// An all-reduce is a reduce-scatter and an all-gather of the pieces: rank r
/// reduces the elements [PieceBegin(count, size, r), PieceBegin(count, size,
/// r + 1)) of `count`.
constexpr int64_t PieceBegin(int64_t count, int size, int r) {
  return count / size * r + count % size * r / size;
}

/// What a rank moved on one communicator. The bytes are those that this rank
/// takes from other ranks' memory, counted at issue and by the contract, so
/// that every engine, a dry run included, gives the same numbers. With n ranks,
/// me this rank, and elems(x) the elements of a list:
///   all_gather, all_to_all   sum over r != me of elems(recv[r])
///   reduce_scatter           (n - 1) * elems(recv[0])
///   all_reduce               (n - 1) * piece(me) + elems(recv[0]) - piece(me)
///   broadcast                elems(recv[0]), on the root 0
///   barrier                  0
/// times the size of the dtype.
struct CommunicatorStats {
  struct Count {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  /// By CollectiveKind.
  Count by_kind[kNumCollectiveKinds];
};

/// The members of one group, seen from one of them.
/// \threadsafety the rank's thread only, except Abort.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// E.g. "tp".
  const std::string& name() const { return name_; }
  /// This rank's index in the group.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  /// The members' world ranks, by index.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// "group 'tp' (ranks 0, 2)", for messages.
  std::string Describe() const;

  /// Issues `collective` to `stream`. Checks it, takes the next sequence
  /// number, counts and logs it, and hands it to the engine. On a poisoned rank
  /// nothing is issued, the group fails, and the result is OK: the error comes
  /// out where a result would.
  ///
  /// local: completes in stream order when this rank's data is in place and no
  ///     peer reads its memory any more. Sums add ranks 0..n-1 in order, in
  ///     float32 for the 16-bit types, so results are bitwise the same in every
  ///     run. Data moves once, from the peer's memory to its final place.
  /// fake: counts and logs, moves nothing.
  /// \error kInvalidArgument for lists that do not fit the kind.
  /// Later, as poison: kFailedPrecondition where ranks differ, a rank has
  /// finished or all wait in a circle; kDeadlineExceeded; kAborted where
  /// another group or rank failed, with its message.
  absl::Status Issue(Collective collective, Stream& stream);

  /// The side channel: gathers a small blob of bytes of every rank, by index.
  /// Blocks the calling thread; not ordered with any stream. Used for meshes,
  /// counts and other metadata.
  /// \error what went wrong with the group; blobs may differ in size.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(
      std::string blob, const std::string& label) = 0;

  /// Fails the group: every member's pending and later collectives end with
  /// `error`, which must not be OK. \threadsafety any thread.
  virtual void Abort(absl::Status error) = 0;

  const CommunicatorStats& stats() const { return stats_; }

 protected:
  Communicator(std::string name, int rank, std::vector<int> world_ranks);

  /// The engine's part: `collective` has been checked; `sequence` counts from
  /// 0 per communicator.
  virtual void IssueChecked(Collective collective, int64_t sequence,
                            Stream& stream) = 0;

 private:
  const std::string name_;
  const int rank_;
  const std::vector<int> world_ranks_;
  int64_t next_sequence_ = 0;
  CommunicatorStats stats_;
};

/// \name The common collectives on contiguous buffers.
/// Elements are of `dtype`; `stream` as for Issue.
/// @{

/// send: `count` elements; recv: size() * count, rank r's at r * count.
absl::Status AllGather(Communicator& comm, const void* send, void* recv,
                       int64_t count, DType dtype, Stream& stream,
                       std::string label);
/// send: size() * count elements; recv: `count` elements (per rank), the
/// reduction of the rank()-th piece.
absl::Status ReduceScatter(Communicator& comm, const void* send, void* recv,
                           int64_t count, DType dtype, ReduceOp op,
                           Stream& stream, std::string label);
/// In place on `count` elements.
absl::Status AllReduce(Communicator& comm, void* data, int64_t count,
                       DType dtype, ReduceOp op, Stream& stream,
                       std::string label);
/// `count` elements from `root`'s data to everybody's.
absl::Status Broadcast(Communicator& comm, void* data, int64_t count,
                       DType dtype, int root, Stream& stream,
                       std::string label);
absl::Status Barrier(Communicator& comm, Stream& stream, std::string label);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COMMUNICATOR_H_
