// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_cost.h"

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/layout_pair.h"

namespace crosshatch {
namespace {

/// Whether ranks write the step's result to memory of its own.
bool Allocates(const RedistributeStep& step) {
  if (step.communicates()) return true;
  if (step.kind != RedistributeStepKind::kToPartial) return false;
  // Averages, minima and maxima keep the value on every rank.
  return std::any_of(step.axes.begin(), step.axes.end(), [&step](int axis) {
    return step.to.mesh().size(axis) > 1 &&
           IsFilled(step.to.state_of_axis(axis).op);
  });
}

}  // namespace

int64_t RedistributeCostModel::LaunchWeight(absl::Span<const int> axes) const {
  if (bytes_per_launch_of_axis.empty()) return bytes_per_launch;
  int64_t most = 0;
  for (int axis : axes) {
    CH_CHECK(axis < static_cast<int>(bytes_per_launch_of_axis.size()))
        << "the cost model knows " << bytes_per_launch_of_axis.size()
        << " mesh axes";
    most = std::max(most, bytes_per_launch_of_axis[axis]);
  }
  return most;
}

int64_t RedistributeCostModel::Weight(const RedistributeStep& step,
                                      const RedistributeCost& cost) const {
  return cost.launches == 0 ? cost.bytes : cost.bytes + LaunchWeight(step.axes);
}

HeldElements::HeldElements(const Layout& source, ShapeView shape)
    : source_(LargestShard(source, shape)), peak_(source_) {}

// The largest shards of all layouts are those of the rank at coordinate 0.
void HeldElements::Run(const RedistributeStep& step, ShapeView shape) {
  if (!Allocates(step)) return;
  const int64_t next = LargestShard(step.to, shape);
  peak_ = std::max(peak_, source_ + result_ + next);
  result_ = next;
}

}  // namespace crosshatch
