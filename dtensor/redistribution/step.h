// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_STEP_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_STEP_H_

/// \file
/// One step of a redistribution, as a value: its kind and layouts, the boxes
/// that each rank sends and receives, and its cost.
///
/// All of it is arithmetic on layouts. Code that executes a step (on tensors
/// and communicators, or on vectors in a test) follows StepTransfers.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// The kind of a step, for rank r of a group over the step's axes. "Box" is a
/// rank's shard, before (source) and after (destination) the step.
enum class RedistributeStepKind : uint8_t {
  /// No communication: the destination box is cut out of the source box. If the
  /// destination box has no elements, its sizes may exceed the source's.
  kLocal,
  /// All destination boxes of the group are equal, composed of every member's
  /// part. Each member sends the same to all.
  kAllGather,
  /// Each member receives the parts of its destination box from the members
  /// that hold them.
  kAllToAll,
  /// All source boxes of the group are equal, partial over the step's axes.
  /// Each member receives the reduction of its destination box.
  kReduceScatter,
  /// Each element of the source box, which is also the destination box, becomes
  /// its reduction over the group.
  kAllReduce,
  /// No communication: some values become partial. For sums and products the
  /// destination box is filled with FillValue(), then one rank of each group of
  /// replicas writes the part that it holds. For averages, minima and maxima
  /// every rank keeps the value.
  kToPartial,
};

/// Returns whether one rank keeps values that become partial in `op` while the
/// others are filled with the neutral element: for sums and products. Otherwise
/// all ranks keep them.
inline bool IsFilled(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kProduct;
}

/// Returns "local", "all_gather", ...
const char* Name(RedistributeStepKind kind);

struct RedistributeStep {
  RedistributeStepKind kind;
  /// The mesh axes of the group, ascending. Its members are those of
  /// `mesh.GroupRanks(axes, coordinate)`, in that order. Empty for kLocal; the
  /// axes that become partial for kToPartial.
  absl::InlinedVector<int, 4> axes;
  /// For kReduceScatter, kAllReduce and kToPartial.
  ReduceOp op = ReduceOp::kSum;
  /// The reduction is divided by this at the end. Sums and averages over
  /// different axes are one kSum with the product of the averaged axes' sizes
  /// here; otherwise 1 (kAvg itself divides by the group's size).
  int64_t divisor = 1;
  Layout from;
  Layout to;

  bool communicates() const {
    return kind != RedistributeStepKind::kLocal &&
           kind != RedistributeStepKind::kToPartial;
  }
  /// The value that a kToPartial step fills with: the neutral element of `op`,
  /// 0 or 1.
  int FillValue() const { return op == ReduceOp::kProduct ? 1 : 0; }

  /// "all_gather(dim 0, axes=[dp])", "all_to_all(dim 0 -> dim 1, axes=[tp])",
  /// "reduce_scatter(sum, dim 0, axes=[tp])", "all_reduce(avg, axes=[dp])",
  /// "to_partial(sum, axes=[dp])", "local(dim 0)".
  std::string ToString() const;

  friend bool operator==(const RedistributeStep& a, const RedistributeStep& b) {
    return a.kind == b.kind && a.axes == b.axes && a.op == b.op &&
           a.divisor == b.divisor && a.from == b.from && a.to == b.to;
  }
};

/// The transfers of one rank in a step. Lists are by index in the group. A box
/// without elements means no transfer with that peer. Shards are boxes, so one
/// box is sufficient.
///
/// kLocal, kToPartial: lists of one, the copy to make; empty lists if there is
///     none (no elements, or a kToPartial step that only fills here).
/// kAllReduce: lists of one, the whole shard; empty lists on every member of a
///     group whose shards have no elements.
/// kReduceScatter: sends[r] is r's destination box; receives[r] the whole
///     destination, which receives the reduction of all.
/// kAllGather: sends[r] is the same for all r.
/// \invariant Box sends[r] of rank q and box receives[q] of rank r have equal
///     sizes. The entries of the rank itself are a local copy.
struct TransferBoxes {
  /// This rank's index in the group and in the lists.
  int self = 0;
  /// Relative to this rank's source shard.
  std::vector<Box> sends;
  /// Relative to this rank's destination shard.
  std::vector<Box> receives;
};

/// Returns the transfers of the rank at `coordinate` in `step`, on a tensor of
/// global shape `shape`.
TransferBoxes StepTransfers(const RedistributeStep& step, ShapeView shape,
                            absl::Span<const int> coordinate);

/// The cost of communication, for the rank that receives the most.
struct RedistributeCost {
  /// Bytes received from other ranks. An all-reduce counts as a reduce-scatter
  /// and an all-gather of pieces of n / g elements, rounded up, for n elements
  /// on each of g ranks.
  int64_t bytes = 0;
  /// Collectives issued.
  int64_t launches = 0;

  RedistributeCost& operator+=(const RedistributeCost& other) {
    bytes += other.bytes;
    launches += other.launches;
    return *this;
  }
  friend bool operator==(const RedistributeCost& a, const RedistributeCost& b) {
    return a.bytes == b.bytes && a.launches == b.launches;
  }
};

/// Returns the cost of `step` on a tensor with elements of `element_size`
/// bytes.
RedistributeCost StepCost(const RedistributeStep& step, ShapeView shape,
                          int64_t element_size);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_STEP_H_
