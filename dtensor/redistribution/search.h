// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_

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

/// The lightest of a few plans of one form; of equal ones, the first:
///
/// - Reductions come first: over all axes at once or some after others, the
///   result split as the destination is, not at all or along one dim, where
///   what replicas hold may be sliced before.
/// - Then one exchange; where nothing is to be reduced or to become partial,
///   there is nothing lighter.
/// - Values become summands last.
///
/// nullopt where they all need more elements than allowed.
std::optional<RedistributePath> LightestCandidate(
    const RedistributeProblem& problem);

/// More layouts than this are not searched. Those of tensors of up to 7 dims on
/// two mesh axes and of up to 2 dims on three are fewer.
inline constexpr int kMostLayoutsSearched = 128;
/// After so many steps between layouts were looked at, each counted as the
/// ranks of the mesh, a search without a bound on memory gives up: a plan
/// takes milliseconds on any mesh. Up to 16 ranks it never does.
inline constexpr int64_t kMostWorkOfSearch = int64_t{1} << 18;

/// The lightest of all sequences of steps that weigh less than `limit` and keep
/// to the bound on memory; nullopt if there are none, too many layouts, or too
/// much work.
///
/// The sequences go through all layouts in which a mesh axis splits any dim, in
/// any order with the others, replicates, or is partial as it is at one of the
/// ends: summands that both ends have stay apart, and zeros are not added only
/// to save a collective. A best-first search, in which the lower bound on what
/// is left to do leaves out what cannot win.
std::optional<RedistributePath> SearchAllLayouts(
    const RedistributeProblem& problem, int64_t limit);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
