// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/search.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/cost.h"
#include "crosshatch/dtensor/redistribution/moves.h"

namespace crosshatch {
namespace {

using Path = RedistributePath;
using Layouts = std::vector<Layout>;

/// Appends the layouts of `layouts` with `axis` splitting some dim in addition.
void AddSplits(int axis, const Layout& like, Layouts& layouts) {
  const size_t without = layouts.size();
  for (size_t i = 0; i < without; ++i) {
    for (int dim = 0; dim < like.ndim(); ++dim) {
      const int last = static_cast<int>(layouts[i].axes_of_dim(dim).size());
      for (int position = 0; position <= last; ++position) {
        layouts.push_back(InsertShard(layouts[i], axis, dim, position, like));
      }
    }
  }
}

/// Appends the first `count` of `layouts` with a pending reduction over `axis`,
/// if valid.
void AddPartials(int axis, ReduceOp op, size_t count, Layouts& layouts) {
  for (size_t i = 0; i < count; ++i) {
    bool commutes = true;
    for (const AxisState& state : layouts[i].axis_states()) {
      commutes &= !state.is_partial() || Commute(state.op, op);
    }
    if (commutes) layouts.push_back(layouts[i].WithPartial(axis, op));
  }
}

/// Returns all layouts of the search, including the ends; empty if there are
/// too many.
Layouts LayoutsBetween(const RedistributeProblem& problem) {
  const MeshLayout& mesh = problem.from.mesh();
  Layouts layouts = {Layout::Replicated(mesh, problem.from.ndim())};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const AxisState& before = problem.from.state_of_axis(axis);
    const AxisState& after = problem.to.state_of_axis(axis);
    if (before == after && before.is_partial()) {
      for (Layout& layout : layouts) {
        layout = layout.WithPartial(axis, before.op);
      }
      continue;
    }
    const size_t replicated = layouts.size();
    if (mesh.size(axis) > 1) {
      AddSplits(axis, problem.to, layouts);
    }
    for (const AxisState& state : {before, after}) {
      if (state.is_partial()) {
        AddPartials(axis, state.op, replicated, layouts);
      }
    }
    if (layouts.size() > kMostLayoutsSearched) return {};
  }
  for (const Layout& end : {problem.from, problem.to}) {
    if (std::find(layouts.begin(), layouts.end(), end) == layouts.end()) {
      layouts.push_back(end);
    }
  }
  return layouts;
}

class Search {
 public:
  Search(const RedistributeProblem& problem, int64_t limit)
      : problem_(problem), limit_(limit) {}

  std::optional<Path> Run() {
    for (Layout& layout : LayoutsBetween(problem_)) {
      const int64_t least = LeastWeight(problem_, layout);
      places_.push_back({std::move(layout), least, {}});
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].layout == problem_.from) {
        Open(i, std::make_shared<const Path>(problem_));
      }
    }
    while (!open_.empty()) {
      if (!IsBounded() && work_ > kMostWorkOfSearch) return std::nullopt;
      const Candidate best = open_.top();
      open_.pop();
      const Place& place = places_[best.place];
      if (place.layout == problem_.to) return *best.path;
      // A better path may have been found since.
      if (std::find(place.paths.begin(), place.paths.end(), best.path) !=
          place.paths.end()) {
        Expand(best);
      }
    }
    return std::nullopt;
  }

 private:
  using SharedPath = std::shared_ptr<const Path>;

  struct Place {
    Layout layout;
    /// A lower bound on the remaining weight.
    int64_t least_weight;
    /// Paths to this layout, none of which is better than another in all
    /// respects.
    std::vector<SharedPath> paths;
  };

  struct Candidate {
    /// A lower bound on the total weight.
    int64_t weight;
    size_t steps;
    /// The order of discovery.
    int64_t number;
    size_t place;
    SharedPath path;

    bool operator<(const Candidate& other) const {
      if (weight != other.weight) return weight > other.weight;
      if (steps != other.steps) return steps > other.steps;
      return number > other.number;
    }
  };

  bool IsBounded() const {
    return problem_.max_elements != std::numeric_limits<int64_t>::max();
  }

  /// Returns whether every continuation of `b` can follow `a` at no more
  /// weight.
  bool IsAsGood(const Path& a, const Path& b) const {
    return a.weight <= b.weight && a.steps.size() <= b.steps.size() &&
           (!IsBounded() || a.held.result() <= b.held.result());
  }

  void Open(size_t index, SharedPath path) {
    Place& place = places_[index];
    for (const SharedPath& other : place.paths) {
      if (IsAsGood(*other, *path)) return;
    }
    place.paths.erase(std::remove_if(place.paths.begin(), place.paths.end(),
                                     [&](const SharedPath& other) {
                                       return IsAsGood(*path, *other);
                                     }),
                      place.paths.end());
    open_.push({path->weight + place.least_weight, path->steps.size(),
                number_++, index, path});
    place.paths.push_back(std::move(path));
  }

  void Expand(const Candidate& candidate) {
    const Path& path = *candidate.path;
    const Layout& layout = places_[candidate.place].layout;
    for (size_t i = 0; i < places_.size(); ++i) {
      const Place& next = places_[i];
      if (i == candidate.place || path.weight + next.least_weight >= limit_ ||
          std::any_of(next.paths.begin(), next.paths.end(),
                      [&](const SharedPath& other) {
                        return IsAsGood(*other, path);
                      })) {
        continue;
      }
      work_ += layout.mesh().size();
      std::optional<RedistributeStep> step = StepTo(layout, next.layout);
      if (!step.has_value()) continue;
      auto further = std::make_shared<Path>(path);
      if (further->Extend(problem_, std::move(step),
                          limit_ - next.least_weight)) {
        Open(i, std::move(further));
      }
    }
  }

  /// Returns the step from one layout to another, if one step is sufficient.
  std::optional<RedistributeStep> StepTo(const Layout& from,
                                         const Layout& to) const {
    const PartialChanges changes(from, to);
    if (!changes.reduced.empty() && !changes.created.empty()) {
      return std::nullopt;
    }
    if (!changes.reduced.empty()) {
      if (MostMissing(from, to, problem_.shape) > 0) return std::nullopt;
      return ReductionStep(from, to, changes.reduced);
    }
    if (!changes.created.empty()) {
      if (!BecomesPartialInPlace(from, to, changes.created, problem_.shape)) {
        return std::nullopt;
      }
      return ToPartialStep(from, to, changes.created);
    }
    return ExchangeStep(from, to, problem_.shape);
  }

  const RedistributeProblem& problem_;
  const int64_t limit_;
  std::vector<Place> places_;
  std::priority_queue<Candidate> open_;
  int64_t number_ = 0;
  int64_t work_ = 0;
};

}  // namespace

std::optional<RedistributePath> SearchAllLayouts(
    const RedistributeProblem& problem, int64_t limit) {
  return Search(problem, limit).Run();
}

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
  // A reduction over an axis needs a collective over it, possibly with other
  // axes.
  int64_t launch = 0;
  for (int axis : PartialChanges(layout, problem.to).reduced) {
    if (mesh.size(axis) == 1) continue;
    launch = std::max(launch, problem.model.LaunchWeight({axis}));
  }
  // Every operand of an average, minimum or maximum is the value, which each
  // rank must have.
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
  // A byte has at least the weight of the lightest axis.
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
