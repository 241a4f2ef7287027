// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_PROBLEM_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_PROBLEM_H_

/// \file
/// A redistribution to be planned, and how far a sequence of steps has got.

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/dtensor/redistribution/step.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// What PlanRedistribute is asked for, with valid arguments.
struct RedistributeProblem {
  const Layout& from;
  const Layout& to;
  ShapeView shape;
  int64_t element_size;
  const RedistributeCostModel& model;
  /// Bounds HeldElements::peak().
  int64_t max_elements = std::numeric_limits<int64_t>::max();
};

/// Axes whose pending reduction has to be done between two layouts, and those
/// that become partial. One that is partial with another op is both.
struct PartialChanges {
  PartialChanges(const Layout& from, const Layout& to);

  AxisList reduced;
  AxisList created;
};

/// No steps from `layout` to the problem's destination weigh less.
int64_t LeastWeight(const RedistributeProblem& problem, const Layout& layout);

/// Steps from the problem's source.
struct RedistributePath {
  std::vector<RedistributeStep> steps;
  int64_t weight = 0;
  HeldElements held;

  explicit RedistributePath(const RedistributeProblem& problem)
      : held(problem.from, problem.shape) {}

  /// Takes one step more, or none for nullopt. Returns whether the bound on
  /// memory allows that and the weight stays below `limit`; if not, the path is
  /// of no use any more.
  bool Extend(const RedistributeProblem& problem,
              std::optional<RedistributeStep> step, int64_t limit);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_PROBLEM_H_
