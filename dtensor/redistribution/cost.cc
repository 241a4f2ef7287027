// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/cost.h"

#include <algorithm>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout/layout_pair.h"

namespace crosshatch {
namespace {

/// Returns whether ranks allocate memory for the step's result.
bool Allocates(const RedistributeStep& step) {
  if (step.communicates()) return true;
  if (step.kind != RedistributeStepKind::kToPartial) return false;
  // Averages, minima and maxima keep the value on every rank.
  return std::any_of(step.axes.begin(), step.axes.end(), [&step](int axis) {
    return step.to.mesh().size(axis) > 1 &&
           IsFilled(step.to.state_of_axis(axis).op);
  });
}

int64_t MostOf(absl::Span<const int64_t> by_axis, absl::Span<const int> axes) {
  int64_t most = 0;
  for (int axis : axes) {
    CH_CHECK(axis < static_cast<int>(by_axis.size()))
        << "the cost model has weights of " << by_axis.size() << " mesh axes";
    most = std::max(most, by_axis[axis]);
  }
  return most;
}

}  // namespace

int64_t RedistributeCostModel::LaunchWeight(absl::Span<const int> axes) const {
  return bytes_per_launch_of_axis.empty()
             ? bytes_per_launch
             : MostOf(bytes_per_launch_of_axis, axes);
}

int64_t RedistributeCostModel::ByteWeight(absl::Span<const int> axes) const {
  return weight_of_byte_by_axis.empty() ? 1
                                        : MostOf(weight_of_byte_by_axis, axes);
}

bool RedistributeCostModel::WeighsBytesAlike() const {
  return std::all_of(
      weight_of_byte_by_axis.begin(), weight_of_byte_by_axis.end(),
      [this](int64_t weight) { return weight == weight_of_byte_by_axis[0]; });
}

int64_t RedistributeCostModel::Weight(const RedistributeStep& step,
                                      const RedistributeCost& cost) const {
  if (cost.launches == 0) return cost.bytes;
  return cost.bytes * ByteWeight(step.axes) + LaunchWeight(step.axes);
}

HeldElements::HeldElements(const Layout& source, ShapeView shape)
    : source_(LargestShard(source, shape)), peak_(source_) {}

// Exact for even shards: the largest ones of all layouts are those of the rank
// at coordinate 0. With cuts it is a bound.
void HeldElements::Run(const RedistributeStep& step, ShapeView shape) {
  if (!Allocates(step)) return;
  const int64_t next = LargestShard(step.to, shape);
  peak_ = std::max(peak_, source_ + result_ + next);
  result_ = next;
}

int64_t RedistributeLowerBound(const Layout& from, const Layout& to,
                               ShapeView shape) {
  const MeshLayout& mesh = from.mesh();
  // Ranks along axes that become partial count as one; transfers between them
  // are not counted.
  AxisList pooled;
  int64_t summands = 1;
  // The ranks that a message may connect.
  int64_t ranks = 1;
  int64_t replicas = 1;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const AxisState& before = from.state_of_axis(axis);
    const AxisState& after = to.state_of_axis(axis);
    if (before.is_partial() && before == after) continue;
    const int64_t size = mesh.size(axis);
    ranks *= size;
    if (after.is_partial()) {
      pooled.push_back(axis);
      continue;
    }
    if (before.is_partial()) summands *= size;
    if (after.is_replicate()) replicas *= size;
  }
  const int64_t sharers = mesh.GroupSize(pooled);
  if (summands == 1) {
    return CeilDiv(MostMissing(from, to, shape, pooled), sharers);
  }
  const int64_t messages = NumElements(shape) * (summands + replicas - 2);
  return std::max(CeilDiv(LargestShard(to, shape), sharers),
                  CeilDiv(messages, ranks));
}

}  // namespace crosshatch
