// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_COLLECTIVE_H_
#define CROSSHATCH_COMM_COLLECTIVE_H_

/// \file
/// A collective as a value: its kind and its memory. Memory is given by lists
/// of segments, so that data are read and written in place in any memory
/// layout. A contiguous buffer is a list of one segment.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch {

/// `runs` runs of `run_elems` contiguous elements, which begin `stride_elems`
/// apart and do not overlap. Counted in elements of the collective's dtype.
struct Segment {
  void* data = nullptr;
  int64_t run_elems = 0;
  int64_t runs = 1;
  int64_t stride_elems = 0;

  int64_t elems() const { return run_elems * runs; }
};
using SegmentList = absl::InlinedVector<Segment, 1>;

/// Returns the number of elements of a list.
int64_t NumElements(absl::Span<const Segment> segments);

enum class CollectiveKind : uint8_t {
  /// recv[r] receives send[0] of rank r.
  kAllGather,
  /// recv[0] receives the reduction, over all ranks, of their send[this rank].
  kReduceScatter,
  /// recv[0] receives the reduction, over all ranks, of their send[0]. send[0]
  /// and recv[0] may be the same segments (in place).
  kAllReduce,
  /// recv[r] receives send[this rank] of rank r. Lists may be empty.
  kAllToAll,
  /// recv[0] receives send[0] of the root. The root's own recv[0] may be empty
  /// or omitted.
  kBroadcast,
  /// Moves no data. Completes when all members have issued it.
  kBarrier,
};
inline constexpr int kNumCollectiveKinds = 6;

/// Returns "all_gather", "reduce_scatter", ...
const char* Name(CollectiveKind kind);

/// One collective of one rank. Lists are matched element by element in order.
/// The two sides may cut a list into different segments, but its number of
/// elements is the same.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kFloat32;
  /// kReduceScatter and kAllReduce, on any dtype but bool. kAvg divides by the
  /// group's size (floating point only).
  ReduceOp reduce_op = ReduceOp::kSum;
  /// Multiplies the result of a reduction, in float32 or wider (floating point
  /// only): for gradients that are averaged over another count than the group's
  /// size.
  double scale = 1.0;
  /// kBroadcast.
  int root = 0;
  /// The name of the tensor or group; compared between ranks and printed in
  /// errors and logs.
  std::string label;
  /// Details for errors, printed if ranks disagree or a rank is missing; not
  /// compared. May be null.
  std::shared_ptr<const std::string> about;

  std::vector<SegmentList> send;
  std::vector<SegmentList> recv;
};

/// Returns where rank r's piece of an all-reduce of `count` elements begins. An
/// all-reduce is a reduce-scatter and an all-gather of the pieces: rank r
/// reduces [PieceBegin(count, size, r), PieceBegin(count, size, r + 1)).
constexpr int64_t PieceBegin(int64_t count, int size, int r) {
  return count / size * r + count % size * r / size;
}

/// Returns whether `kind` combines the ranks' data.
bool IsReduction(CollectiveKind kind);

/// Returns the bytes that member `me` of a group of `n` receives from the
/// others in `collective`. With elems(x) the elements of a list:
///   all_gather, all_to_all   sum over r != me of elems(recv[r])
///   reduce_scatter           (n - 1) * elems(recv[0])
///   all_reduce               (n - 1) * piece(me) + elems(recv[0]) - piece(me)
///   broadcast                elems(recv[0]), on the root 0
///   barrier                  0
/// times the size of the dtype.
int64_t BytesReceived(const Collective& collective, int me, int n);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_COLLECTIVE_H_
