// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_

/// \file
/// The search for the cheapest plan: the problem, the path found so far, a few
/// candidates that usually win, and a search over all layouts.

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

/// The arguments of PlanRedistribute, validated.
struct RedistributeProblem {
  const Layout& from;
  const Layout& to;
  ShapeView shape;
  int64_t element_size;
  const RedistributeCostModel& model;
  /// Bounds HeldElements::peak().
  int64_t max_elements = std::numeric_limits<int64_t>::max();
};

/// The axes whose pending reduction has to be performed between two layouts,
/// and those that become partial. An axis that is partial with another op is in
/// both.
struct PartialChanges {
  PartialChanges(const Layout& from, const Layout& to);

  AxisList reduced;
  AxisList created;
};

/// Returns a lower bound on the weight of steps from `layout` to the problem's
/// destination.
int64_t LeastWeight(const RedistributeProblem& problem, const Layout& layout);

/// Steps from the problem's source.
struct RedistributePath {
  std::vector<RedistributeStep> steps;
  int64_t weight = 0;
  HeldElements held;

  explicit RedistributePath(const RedistributeProblem& problem)
      : held(problem.from, problem.shape) {}

  /// Appends a step, or nothing for nullopt. Returns whether the path respects
  /// the bound on memory and its weight stays below `limit`; if not, the path
  /// is no longer valid.
  bool Extend(const RedistributeProblem& problem,
              std::optional<RedistributeStep> step, int64_t limit);
};

/// Returns the lightest of a few plans of one form; of equal ones, the first:
///
/// - Reductions come first: over all axes at once or some after others. Their
///   result is split as the destination, not at all, or along one dim, which
///   may be sliced from replicas before.
/// - Then one exchange. If nothing is reduced and nothing becomes partial, no
///   plan is lighter.
/// - Values become partial last.
///
/// Returns nullopt if all of them exceed the allowed elements.
std::optional<RedistributePath> LightestCandidate(
    const RedistributeProblem& problem);

/// The search handles at most this many layouts: those of tensors of up to 7
/// dims on two mesh axes and of up to 2 dims on three.
inline constexpr int kMostLayoutsSearched = 128;
/// A search without a bound on memory gives up after this many steps between
/// layouts, each multiplied by the ranks of the mesh, so that a plan takes
/// milliseconds on any mesh. Up to 16 ranks it never gives up.
inline constexpr int64_t kMostWorkOfSearch = int64_t{1} << 18;

/// Returns the lightest of all sequences of steps that weigh less than `limit`
/// and respect the bound on memory; nullopt if there are none, too many
/// layouts, or too much work.
///
/// The sequences go through all layouts in which a mesh axis splits any dim, in
/// any order with the others, replicates, or is partial as at one of the ends.
/// Axes that are partial at both ends stay partial, and zeros are not added
/// only to save a collective. A best-first search with a lower bound on the
/// remaining weight.
std::optional<RedistributePath> SearchAllLayouts(
    const RedistributeProblem& problem, int64_t limit);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
