// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/problem.h"

#include <algorithm>

#include "crosshatch/dtensor/redistribution/bound.h"

namespace crosshatch {

PartialChanges::PartialChanges(const Layout& from, const Layout& to) {
  for (int axis = 0; axis < from.mesh().ndim(); ++axis) {
    const AxisState& before = from.state_of_axis(axis);
    const AxisState& after = to.state_of_axis(axis);
    if (before == after) continue;
    if (before.is_partial()) reduced.push_back(axis);
    if (after.is_partial()) created.push_back(axis);
  }
}

int64_t LeastWeight(const RedistributeProblem& problem, const Layout& layout) {
  const MeshLayout& mesh = layout.mesh();
  // A reduction over an axis takes a collective over it, whatever else it is
  // over.
  int64_t launch = 0;
  for (int axis : PartialChanges(layout, problem.to).reduced) {
    if (mesh.size(axis) == 1) continue;
    launch = std::max(launch, problem.model.LaunchWeight({axis}));
  }
  // Every operand of an average, minimum or maximum is the value, which each
  // rank has to have.
  Layout held = problem.to;
  for (int axis : PartialChanges(layout, problem.to).created) {
    if (!IsFilled(problem.to.state_of_axis(axis).op)) {
      held = held.WithReplicate(axis);
    }
  }
  const int64_t elements = RedistributeLowerBound(layout, held, problem.shape);
  if (launch == 0 && elements > 0) {
    launch = std::numeric_limits<int64_t>::max();
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if (mesh.size(axis) == 1) continue;
      launch = std::min(launch, problem.model.LaunchWeight({axis}));
    }
  }
  // No byte weighs less than over the lightest axis.
  int64_t of_byte = std::numeric_limits<int64_t>::max();
  for (int axis = 0; elements > 0 && axis < mesh.ndim(); ++axis) {
    if (mesh.size(axis) == 1) continue;
    of_byte = std::min(of_byte, problem.model.ByteWeight({axis}));
  }
  return elements == 0 ? launch
                       : launch + elements * problem.element_size * of_byte;
}

bool RedistributePath::Extend(const RedistributeProblem& problem,
                              std::optional<RedistributeStep> step,
                              int64_t limit) {
  if (!step.has_value()) return true;
  weight += problem.model.Weight(
      *step, StepCost(*step, problem.shape, problem.element_size));
  if (weight >= limit) return false;
  held.Run(*step, problem.shape);
  if (held.peak() > problem.max_elements) return false;
  steps.push_back(*std::move(step));
  return true;
}

}  // namespace crosshatch
