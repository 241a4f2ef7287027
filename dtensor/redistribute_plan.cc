// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"

namespace crosshatch {
namespace {

using Kind = RedistributeStepKind;
using Axes = absl::InlinedVector<int, 4>;
using Steps = std::vector<RedistributeStep>;

bool Holds(absl::Span<const int> axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// Calls `visit` with `place` at each of its coordinates along `axes`, and
/// leaves `place` as it was. Stops when `visit` returns false; returns whether
/// it never did.
template <typename Visit>
bool ForEachAlong(const MeshLayout& mesh, absl::Span<const int> axes,
                  MeshCoordinate& place, const Visit& visit) {
  if (axes.empty()) return visit();
  const int axis = axes[0];
  const int here = place[axis];
  bool whole = true;
  for (int i = 0; whole && i < mesh.size(axis); ++i) {
    place[axis] = i;
    whole = ForEachAlong(mesh, axes.subspan(1), place, visit);
  }
  place[axis] = here;
  return whole;
}

/// Whether along `dim` every rank finds its interval under `to` among those
/// that ranks differing from it in `group` hold under `from`, each element
/// once. \pre `group` are axes that split `dim` under `from`, so that the
/// intervals of a group are disjoint.
bool Covers(const Layout& from, const Layout& to, int dim, int64_t size,
            absl::Span<const int> group) {
  const MeshLayout& mesh = from.mesh();
  Axes varying(from.axes_of_dim(dim).begin(), from.axes_of_dim(dim).end());
  for (int axis : to.axes_of_dim(dim)) {
    if (!Holds(varying, axis)) varying.push_back(axis);
  }
  MeshCoordinate place(mesh.ndim(), 0);
  return ForEachAlong(mesh, varying, place, [&] {
    const Interval wanted = to.DimInterval(dim, size, place);
    int64_t found = 0;
    MeshCoordinate peer = place;
    ForEachAlong(mesh, group, peer, [&] {
      found += Intersect(from.DimInterval(dim, size, peer), wanted).size();
      return true;
    });
    return found == wanted.size();
  });
}

/// The axes with the fewest ranks, among those that split `dim` under `from`,
/// that cover `dim` under `to`. Of equal ones the later axes win: neighbours on
/// them tend to be near each other.
Axes FewestCovering(const Layout& from, const Layout& to, int dim,
                    int64_t size) {
  Axes all(from.axes_of_dim(dim).begin(), from.axes_of_dim(dim).end());
  std::sort(all.begin(), all.end());
  std::vector<Axes> subsets;
  for (size_t mask = 0; mask < size_t{1} << all.size(); ++mask) {
    Axes subset;
    for (size_t i = 0; i < all.size(); ++i) {
      if (mask >> i & 1) subset.push_back(all[i]);
    }
    subsets.push_back(std::move(subset));
  }
  const MeshLayout& mesh = from.mesh();
  std::sort(subsets.begin(), subsets.end(), [&](const Axes& a, const Axes& b) {
    const auto rank = [&mesh](const Axes& axes) {
      return std::make_pair(mesh.GroupSize(axes), axes.size());
    };
    return rank(a) != rank(b) ? rank(a) < rank(b) : a > b;
  });
  for (const Axes& subset : subsets) {
    if (Covers(from, to, dim, size, subset)) return subset;
  }
  CH_CHECK(false) << "the shards of " << from.ToString()
                  << " do not make up dim " << dim;
  return all;
}

/// `layout` with `axis` splitting `dim` minor-most. A dim that was whole takes
/// its unit from `like`.
Layout Append(const Layout& layout, int axis, int dim, const Layout& like) {
  DimSharding sharding = layout.sharding(dim);
  if (sharding.axes.empty()) sharding.unit = like.unit(dim);
  // What comes after a fine axis is fine.
  if (sharding.fine_axes > 0) ++sharding.fine_axes;
  sharding.axes.push_back(axis);
  return layout.WithDim(dim, std::move(sharding));
}

class Planner {
 public:
  Planner(const Layout& from, const Layout& to, ShapeView shape,
          int64_t element_size, const RedistributeCostModel& model)
      : from_(from),
        to_(to),
        mesh_(from.mesh()),
        shape_(shape),
        element_size_(element_size),
        model_(model),
        settled_(to) {
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& before = from.state_of_axis(axis);
      const AxisState& after = to.state_of_axis(axis);
      if (before == after) continue;
      if (before.is_partial()) reduced_.push_back(axis);
      if (after.is_partial()) settled_ = settled_.WithReplicate(axis);
    }
  }

  Steps Plan() {
    if (from_ == to_) return {};
    // Nothing to move or to reduce.
    if (WholeBox(shape_).empty()) return {Local(from_, to_)};
    if (reduced_.empty()) return Finish(from_);

    if (std::optional<Steps> steps = ReduceInPlace()) Offer(*std::move(steps));
    const Layout sliced = Sliced();
    std::vector<Layout> starts = {from_};
    if (sliced != from_) starts.push_back(sliced);
    for (const Layout& start : starts) {
      Steps first;
      if (start != from_) first.push_back(Local(from_, start));
      const auto offer = [&](const Layout& reduced) {
        Steps steps = first;
        Append(steps, Reduce(start, reduced));
        Append(steps, Finish(reduced));
        Offer(std::move(steps));
      };
      // Scatter along the dims that the axes end up splitting; not at all;
      // along some other dim, to be put right by the exchange that follows.
      Layout by_destination = start;
      Layout replicated = start;
      for (int axis : reduced_) {
        const AxisState& after = to_.state_of_axis(axis);
        by_destination =
            after.is_shard()
                ? crosshatch::Append(by_destination, axis, after.dim, to_)
                : by_destination.WithReplicate(axis);
        replicated = replicated.WithReplicate(axis);
      }
      offer(by_destination);
      offer(replicated);
      for (int dim = 0; dim < from_.ndim(); ++dim) {
        Layout scattered = start;
        for (int axis : reduced_) {
          scattered = crosshatch::Append(scattered, axis, dim, to_);
        }
        offer(scattered);
      }
    }
    return *std::move(best_);
  }

  RedistributeCost CostOf(const Steps& steps) const {
    RedistributeCost cost;
    for (const RedistributeStep& step : steps) {
      cost += StepCost(step, shape_, element_size_);
    }
    return cost;
  }

 private:
  static void Append(Steps& steps, Steps more) {
    for (RedistributeStep& step : more) steps.push_back(std::move(step));
  }

  static RedistributeStep Local(const Layout& from, const Layout& to) {
    return {.kind = Kind::kLocal, .axes = {}, .from = from, .to = to};
  }

  /// Keeps `steps` if they are better than all before.
  void Offer(Steps steps) {
    const int64_t weight = model_.Weight(CostOf(steps));
    if (best_.has_value() && weight >= best_weight_) return;
    best_ = std::move(steps);
    best_weight_ = weight;
  }

  /// Whether every rank holds its shard of `to` under `from`.
  bool HoldsAlready(const Layout& from, const Layout& to) const {
    for (int i = 0; i < mesh_.size(); ++i) {
      const MeshCoordinate at = mesh_.CoordinateAt(i);
      if (!Contains(from.LocalBox(shape_, at), to.LocalBox(shape_, at))) {
        return false;
      }
    }
    return true;
  }

  /// The one step between layouts that differ in shards only.
  Steps Exchange(const Layout& from, const Layout& to) const {
    if (from == to) return {};
    if (HoldsAlready(from, to)) return {Local(from, to)};
    Axes axes;
    for (int dim = 0; dim < from.ndim(); ++dim) {
      const Axes covering = FewestCovering(from, to, dim, shape_[dim]);
      axes.insert(axes.end(), covering.begin(), covering.end());
    }
    std::sort(axes.begin(), axes.end());
    const bool dropped = std::none_of(
        axes.begin(), axes.end(),
        [&to](int axis) { return to.state_of_axis(axis).is_shard(); });
    return {{.kind = dropped ? Kind::kAllGather : Kind::kAllToAll,
             .axes = std::move(axes),
             .from = from,
             .to = to}};
  }

  /// The step that does the reductions over `axes` that are pending in `from`.
  RedistributeStep Reduction(Kind kind, const Axes& axes, const Layout& from,
                             const Layout& to) const {
    RedistributeStep step = {.kind = kind, .axes = {}, .from = from, .to = to};
    int64_t averaged = 1;
    bool sums = false;
    for (int axis : axes) {
      const ReduceOp op = from.state_of_axis(axis).op;
      step.op = op;
      if (op == ReduceOp::kAvg) averaged *= mesh_.size(axis);
      if (mesh_.size(axis) == 1) continue;
      sums |= op == ReduceOp::kSum;
      step.axes.push_back(axis);
    }
    if (step.axes.empty()) return Local(from, to);
    if (averaged > 1) {
      step.op = sums ? ReduceOp::kSum : ReduceOp::kAvg;
      step.divisor = sums ? averaged : 1;
    } else if (sums) {
      step.op = ReduceOp::kSum;
    }
    return step;
  }

  /// Does all reductions between `from`, where they are pending, and `to`,
  /// whose shards are parts of those of `from`: first those over axes that
  /// split the result, so that the others have less to do.
  Steps Reduce(const Layout& from, const Layout& to) const {
    Axes scattered;
    Axes replicated;
    Layout between = to;
    for (int axis : reduced_) {
      if (to.state_of_axis(axis).is_shard()) {
        scattered.push_back(axis);
      } else {
        replicated.push_back(axis);
        between = between.WithPartial(axis, from.state_of_axis(axis).op);
      }
    }
    Steps steps;
    if (!scattered.empty()) {
      steps.push_back(
          Reduction(Kind::kReduceScatter, scattered, from, between));
    } else if (from != between) {
      steps.push_back(Local(from, between));
    }
    if (!replicated.empty()) {
      steps.push_back(Reduction(Kind::kAllReduce, replicated, between, to));
    }
    return steps;
  }

  /// Reductions that lead straight to the destination's shards.
  std::optional<Steps> ReduceInPlace() const {
    if (!HoldsAlready(from_, settled_)) return std::nullopt;
    Steps steps = Reduce(from_, settled_);
    Append(steps, Finish(settled_));
    return steps;
  }

  /// `from_` split further by the axes that replicate it and that split the
  /// destination: there is then less to reduce.
  Layout Sliced() const {
    Layout sliced = from_;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& after = to_.state_of_axis(axis);
      if (from_.state_of_axis(axis).is_replicate() && after.is_shard()) {
        sliced = crosshatch::Append(sliced, axis, after.dim, to_);
      }
    }
    return sliced;
  }

  /// From `layout`, where all reductions are done, to the destination.
  Steps Finish(const Layout& layout) const {
    Axes axes;
    // Shards of what is to become a sum or product are summands already, once
    // the rest is filled.
    Layout kept = settled_;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      const AxisState& before = layout.state_of_axis(axis);
      const AxisState& after = to_.state_of_axis(axis);
      if (!after.is_partial() || before.is_partial()) continue;
      axes.push_back(axis);
      if (before.is_shard() && IsFilled(after.op)) {
        kept = crosshatch::Append(kept, axis, before.dim, layout);
      }
    }
    if (axes.empty()) return Exchange(layout, to_);
    if (SummandsInPlace(layout, axes)) return {ToPartial(layout, axes)};

    Steps by_replicas = Exchange(layout, settled_);
    by_replicas.push_back(ToPartial(settled_, axes));
    if (kept == settled_) return by_replicas;
    Steps by_shards = Exchange(layout, kept);
    by_shards.push_back(ToPartial(kept, axes));
    return model_.Weight(CostOf(by_shards)) <=
                   model_.Weight(CostOf(by_replicas))
               ? by_shards
               : by_replicas;
  }

  static bool IsFilled(ReduceOp op) {
    return op == ReduceOp::kSum || op == ReduceOp::kProduct;
  }

  /// Whether the shards of `layout`, filled up to those of the destination, are
  /// partial over `axes` as they stand.
  bool SummandsInPlace(const Layout& layout, const Axes& axes) const {
    for (int dim = 0; dim < layout.ndim(); ++dim) {
      Axes group;
      for (int axis : layout.axes_of_dim(dim)) {
        if (Holds(axes, axis) && IsFilled(to_.state_of_axis(axis).op)) {
          group.push_back(axis);
        }
      }
      if (!Covers(layout, to_, dim, shape_[dim], group)) return false;
    }
    return true;
  }

  RedistributeStep ToPartial(const Layout& layout, const Axes& axes) const {
    RedistributeStep step = {
        .kind = Kind::kToPartial, .axes = axes, .from = layout, .to = to_};
    step.op = to_.state_of_axis(axes[0]).op;
    for (int axis : axes) {
      if (IsFilled(to_.state_of_axis(axis).op)) {
        step.op = to_.state_of_axis(axis).op;
      }
    }
    return step;
  }

  const Layout& from_;
  const Layout& to_;
  const MeshLayout& mesh_;
  const ShapeView shape_;
  const int64_t element_size_;
  const RedistributeCostModel& model_;
  /// Axes whose pending reduction the destination does not have.
  Axes reduced_;
  /// `to_` before values become partial: replicated over these axes.
  Layout settled_;
  std::optional<Steps> best_;
  int64_t best_weight_ = 0;
};

}  // namespace

std::string RedistributePlan::ToString() const {
  std::string text =
      absl::StrCat(from.ToString(), " -> ", to.ToString(), ": ", cost.launches,
                   " collective", cost.launches == 1 ? "" : "s", ", ",
                   cost.bytes, " bytes\n");
  for (const RedistributeStep& step : steps) {
    absl::StrAppend(&text, "  ", step.ToString(), " -> ", step.to.ToString(),
                    "\n");
  }
  return text;
}

absl::StatusOr<RedistributePlan> PlanRedistribute(
    const Layout& from, const Layout& to, ShapeView shape, int64_t element_size,
    const RedistributeCostModel& model) {
  const auto describe = [&] {
    return absl::StrCat(from.ToString(), " of ", from.ndim(), " dims on ",
                        from.mesh().ToString(), " to ", to.ToString(), " of ",
                        to.ndim(), " dims on ", to.mesh().ToString());
  };
  if (from.mesh() != to.mesh()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribute: the layouts have different meshes: ", describe()));
  }
  if (from.ndim() != to.ndim() ||
      from.ndim() != static_cast<int>(shape.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("redistribute: a tensor of shape ",
                     crosshatch::ToString(shape), " from ", describe()));
  }
  if (std::any_of(shape.begin(), shape.end(),
                  [](int64_t size) { return size < 0; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "redistribute: negative size in ", crosshatch::ToString(shape)));
  }
  Planner planner(from, to, shape, element_size, model);
  Steps steps = planner.Plan();
  const RedistributeCost cost = planner.CostOf(steps);
  return RedistributePlan{from, to, std::move(steps), cost};
}

}  // namespace crosshatch
