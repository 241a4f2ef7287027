// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/moves.h"
#include "crosshatch/dtensor/redistribution/search.h"

namespace crosshatch {
namespace {

using Path = RedistributePath;
using Layouts = std::vector<Layout>;

class Candidates {
 public:
  explicit Candidates(const RedistributeProblem& problem)
      : problem_(problem),
        from_(problem.from),
        to_(problem.to),
        mesh_(problem.from.mesh()),
        shape_(problem.shape),
        least_(LeastWeight(problem, problem.from)),
        changes_(problem.from, problem.to),
        reduced_(problem.to) {
    for (int axis : changes_.created) reduced_ = reduced_.WithReplicate(axis);
  }

  std::optional<Path> Lightest() {
    Reduce(Path(problem_), from_);
    return std::move(best_);
  }

 private:
  int64_t Limit() const {
    return best_.has_value() ? best_->weight
                             : std::numeric_limits<int64_t>::max();
  }

  /// Returns whether nothing can be lighter than what was found.
  bool IsDone() const { return best_.has_value() && best_->weight <= least_; }

  bool Extend(Path& path, std::optional<RedistributeStep> step) const {
    return path.Extend(problem_, std::move(step), Limit());
  }

  /// Continues from `layout` to the destination, possibly with reductions left.
  void Reduce(const Path& path, const Layout& layout) {
    AxisList pending;
    for (int axis : changes_.reduced) {
      if (layout.state_of_axis(axis) == from_.state_of_axis(axis)) {
        pending.push_back(axis);
      }
    }
    if (pending.empty()) return Complete(path, layout);
    // All axes at once first.
    for (unsigned mask = (1u << pending.size()) - 1; mask > 0; --mask) {
      AxisList axes;
      for (size_t i = 0; i < pending.size(); ++i) {
        if (mask >> i & 1) axes.push_back(pending[i]);
      }
      for (const Layout& result : Results(layout, axes)) {
        ReduceTo(path, layout, axes, result);
        if (IsDone()) return;
      }
    }
  }

  /// Performs the reductions over `axes`, giving `result`, then the rest.
  void ReduceTo(Path path, const Layout& layout, const AxisList& axes,
                const Layout& result) {
    const auto scattered = std::count_if(
        axes.begin(), axes.end(),
        [&result](int axis) { return result.state_of_axis(axis).is_shard(); });
    Layout source = layout;
    if (scattered == 0) {
      // An all-reduce takes a slice.
      source = result;
      for (int axis : axes) {
        source = source.WithPartial(axis, layout.state_of_axis(axis).op);
      }
    } else if (scattered != static_cast<int>(axes.size())) {
      // Scattering along only some axes would make engines send copies.
      return;
    }
    RedistributeStep step = ReductionStep(source, result, axes);
    if (!step.communicates()) {
      step.from = layout;
    } else if (source != layout && !Extend(path, LocalStep(layout, source))) {
      return;
    }
    if (!Extend(path, std::move(step))) return;
    // Many axes have thousands of sequences, few of them light.
    if (path.weight + LeastWeight(problem_, result) >= Limit()) return;
    if (MostMissing(layout, result, shape_) == 0) Reduce(path, result);
  }

  /// Returns candidate layouts after reductions over `axes`.
  Layouts Results(const Layout& layout, const AxisList& axes) const {
    Layouts results;
    const auto add = [&results](Layout result) {
      if (std::find(results.begin(), results.end(), result) == results.end()) {
        results.push_back(std::move(result));
      }
    };
    // The destination's own shards.
    Layout final = reduced_;
    for (int axis : changes_.reduced) {
      const AxisState& state = layout.state_of_axis(axis);
      if (state.is_partial() && !HasAxis(axes, axis)) {
        final = final.WithPartial(axis, state.op);
      }
    }
    add(std::move(final));

    Layout replicated = layout;
    for (int axis : axes) replicated = replicated.WithReplicate(axis);
    // Each replica may reduce a part of the dims that the destination splits.
    Layout sliced = replicated;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& after = to_.state_of_axis(axis);
      if (layout.state_of_axis(axis).is_replicate() && after.is_shard()) {
        sliced = AppendShard(sliced, axis, after.dim, to_);
      }
    }
    for (const Layout& base : {replicated, sliced}) {
      // Split as the destination, not split, or split along some dim, which the
      // exchange afterwards corrects.
      Layout scattered = base;
      for (int axis : axes) {
        const AxisState& after = to_.state_of_axis(axis);
        if (after.is_shard()) {
          scattered = AppendShard(scattered, axis, after.dim, to_);
        }
      }
      add(std::move(scattered));
      add(base);
      for (int dim = 0; dim < layout.ndim(); ++dim) {
        Layout along = base;
        for (int axis : axes) along = AppendShard(along, axis, dim, to_);
        add(std::move(along));
      }
    }
    return results;
  }

  /// Continues from `layout`, without reductions left, to the destination.
  void Complete(Path path, const Layout& layout) {
    const AxisList& created = changes_.created;
    if (created.empty()) {
      if (Extend(path, ExchangeStep(layout, to_, shape_))) {
        best_ = std::move(path);
      }
      return;
    }
    if (BecomesPartialInPlace(layout, to_, created, shape_)) {
      if (Extend(path, ToPartialStep(layout, to_, created))) {
        best_ = std::move(path);
      }
      return;
    }
    // Each rank of a group needs only a part of its sums and products: the part
    // that it already holds, or all parts along one dim.
    Layout kept = reduced_;
    for (int axis : created) {
      const AxisState& before = layout.state_of_axis(axis);
      if (before.is_shard() && IsFilled(to_.state_of_axis(axis).op)) {
        kept = AppendShard(kept, axis, before.dim, layout);
      }
    }
    Layouts layouts = {kept, reduced_};
    for (int dim = 0; dim < layout.ndim(); ++dim) {
      Layout along = reduced_;
      for (int axis : created) {
        if (!IsFilled(to_.state_of_axis(axis).op)) continue;
        along = AppendShard(along, axis, dim, to_);
      }
      layouts.push_back(std::move(along));
    }
    for (const Layout& parts : layouts) {
      Path whole = path;
      if (Extend(whole, ExchangeStep(layout, parts, shape_)) &&
          Extend(whole, ToPartialStep(parts, to_, created))) {
        best_ = std::move(whole);
      }
    }
  }

  const RedistributeProblem& problem_;
  const Layout& from_;
  const Layout& to_;
  const MeshLayout& mesh_;
  const ShapeView shape_;
  const int64_t least_;
  const PartialChanges changes_;
  /// `to_` before values become partial: replicated over those axes.
  Layout reduced_;
  std::optional<Path> best_;
};

}  // namespace

std::optional<RedistributePath> LightestCandidate(
    const RedistributeProblem& problem) {
  return Candidates(problem).Lightest();
}

}  // namespace crosshatch
