// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribution/exhaustive_search.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "crosshatch/dtensor/layout/layout_testutil.h"

namespace crosshatch {
namespace {

std::vector<Box> BoxesOf(const Layout& layout, ShapeView shape) {
  std::vector<Box> boxes;
  for (int i = 0; i < layout.mesh().size(); ++i) {
    boxes.push_back(layout.LocalBox(shape, layout.mesh().CoordinateAt(i)));
  }
  return boxes;
}

}  // namespace

ExhaustiveSearch::ExhaustiveSearch(const MeshLayout& mesh, int ndim,
                                   const std::vector<ReduceOp>& ops,
                                   ShapeView shape,
                                   const RedistributeCostModel& model)
    : mesh_(mesh), model_(model), layouts_(AllLayouts(mesh, ndim, ops)) {
  for (const Layout& layout : layouts_) {
    boxes_.push_back(BoxesOf(layout, shape));
  }
  edges_.resize(layouts_.size());
  for (size_t i = 0; i < layouts_.size(); ++i) {
    for (size_t j = 0; j < layouts_.size(); ++j) {
      edges_[i].push_back(EdgeBetween(i, j));
    }
  }
}

int64_t ExhaustiveSearch::Weight(size_t from, size_t to,
                                 int64_t max_elements) const {
  // A layout and its backing: the result of an earlier step, or the source.
  using Place = std::pair<size_t, size_t>;
  const size_t source = layouts_.size();
  std::map<Place, int64_t> best = {{{from, source}, 0}};
  std::set<std::pair<int64_t, Place>> open = {{0, {from, source}}};
  if (Held(from, source, source) > max_elements) return kNever;
  while (!open.empty()) {
    const auto [weight, place] = *open.begin();
    open.erase(open.begin());
    const auto [at, backing] = place;
    if (at == to) return weight;
    for (size_t next = 0; next < layouts_.size(); ++next) {
      const Edge& edge = edges_[at][next];
      if (edge.weight == kNever || !IsBetween(next, from, to)) continue;
      size_t next_backing = backing;
      if (edge.allocates) {
        if (Held(from, backing, next) > max_elements) continue;
        // Without a bound the backing does not matter.
        if (max_elements != kNever) next_backing = next;
      }
      const int64_t total = weight + edge.weight;
      const Place there = {next, next_backing};
      const auto [it, is_new] = best.emplace(there, total);
      if (!is_new && it->second <= total) continue;
      it->second = total;
      open.insert({total, there});
    }
  }
  return kNever;
}

int64_t ExhaustiveSearch::Held(size_t source, size_t backing,
                               size_t next) const {
  int64_t most = 0;
  for (int r = 0; r < mesh_.size(); ++r) {
    int64_t held = boxes_[source][r].numel();
    for (size_t other : {backing, next}) {
      if (other < layouts_.size()) held += boxes_[other][r].numel();
    }
    most = std::max(most, held);
  }
  return most;
}

bool ExhaustiveSearch::IsBetween(size_t layout, size_t from, size_t to) const {
  for (int axis = 0; axis < mesh_.ndim(); ++axis) {
    const AxisState& before = layouts_[from].state_of_axis(axis);
    const AxisState& after = layouts_[to].state_of_axis(axis);
    const AxisState& between = layouts_[layout].state_of_axis(axis);
    if (between == before || between == after) continue;
    if (between.is_partial()) return false;
    if (before.is_partial() && before == after) return false;
  }
  return true;
}

ExhaustiveSearch::Edge ExhaustiveSearch::EdgeBetween(size_t i, size_t j) const {
  std::vector<int> reduced;
  std::vector<int> created;
  for (int axis = 0; axis < mesh_.ndim(); ++axis) {
    const AxisState& before = layouts_[i].state_of_axis(axis);
    const AxisState& after = layouts_[j].state_of_axis(axis);
    if (before == after) continue;
    if (before.is_partial()) reduced.push_back(axis);
    if (after.is_partial()) created.push_back(axis);
  }
  if (!reduced.empty() && !created.empty()) return {};
  if (!reduced.empty()) return Reduction(i, j, reduced);
  if (!created.empty()) return ToPartial(i, j, created);

  int64_t missing = 0;
  for (int r = 0; r < mesh_.size(); ++r) {
    missing =
        std::max(missing, boxes_[j][r].numel() -
                              Intersect(boxes_[i][r], boxes_[j][r]).numel());
  }
  if (missing == 0) return {0, false};
  return {ExchangeWeight(i, j, missing * kElementSize), true};
}

int64_t ExhaustiveSearch::ExchangeWeight(size_t i, size_t j,
                                         int64_t bytes) const {
  std::vector<int> split;
  for (int axis = 0; axis < mesh_.ndim(); ++axis) {
    if (layouts_[i].state_of_axis(axis).is_shard()) split.push_back(axis);
  }
  int64_t least = kNever;
  for (unsigned mask = 0; mask < 1u << split.size(); ++mask) {
    std::vector<int> axes;
    for (size_t k = 0; k < split.size(); ++k) {
      if (mask >> k & 1) axes.push_back(split[k]);
    }
    bool found = true;
    for (int r = 0; r < mesh_.size(); ++r) {
      int64_t numel = 0;
      for (int peer : mesh_.GroupRanks(axes, mesh_.CoordinateAt(r))) {
        numel += Intersect(boxes_[i][peer], boxes_[j][r]).numel();
      }
      found &= numel == boxes_[j][r].numel();
    }
    if (found) least = std::min(least, CollectiveWeight(bytes, axes));
  }
  return least;
}

ExhaustiveSearch::Edge ExhaustiveSearch::Reduction(
    size_t i, size_t j, const std::vector<int>& axes) const {
  bool same = true;
  int64_t most = 0;
  for (int r = 0; r < mesh_.size(); ++r) {
    if (!Contains(boxes_[i][r], boxes_[j][r])) return {};
    same &= boxes_[i][r].numel() == boxes_[j][r].numel();
    most = std::max(most, boxes_[j][r].numel());
  }
  const int64_t group = mesh_.GroupSize(axes);
  if (group == 1 || most == 0) return {0, false};
  const int64_t received =
      same ? most + (group - 2) * ((most + group - 1) / group)
           : (group - 1) * most;
  return {CollectiveWeight(received * kElementSize, axes), true};
}

int64_t ExhaustiveSearch::CollectiveWeight(int64_t bytes,
                                           const std::vector<int>& axes) const {
  int64_t of_byte = model_.weight_of_byte_by_axis.empty() ? 1 : 0;
  for (size_t a = 0; a < model_.weight_of_byte_by_axis.size(); ++a) {
    if (std::find(axes.begin(), axes.end(), static_cast<int>(a)) !=
        axes.end()) {
      of_byte = std::max(of_byte, model_.weight_of_byte_by_axis[a]);
    }
  }
  return bytes * of_byte + model_.LaunchWeight(axes);
}

ExhaustiveSearch::Edge ExhaustiveSearch::ToPartial(
    size_t i, size_t j, const std::vector<int>& axes) const {
  std::vector<int> filled;
  for (int axis : axes) {
    const ReduceOp op = layouts_[j].state_of_axis(axis).op;
    if (op == ReduceOp::kSum || op == ReduceOp::kProduct) {
      filled.push_back(axis);
    }
  }
  for (int r = 0; r < mesh_.size(); ++r) {
    int64_t numel = 0;
    for (int peer : mesh_.GroupRanks(filled, mesh_.CoordinateAt(r))) {
      const MeshCoordinate at = mesh_.CoordinateAt(peer);
      const bool puts_in =
          std::all_of(filled.begin(), filled.end(), [&](int axis) {
            return !layouts_[i].state_of_axis(axis).is_replicate() ||
                   at[axis] == 0;
          });
      if (!puts_in) continue;
      numel += Intersect(boxes_[i][peer], boxes_[j][r]).numel();
    }
    if (numel != boxes_[j][r].numel()) return {};
  }
  return {0, mesh_.GroupSize(filled) > 1};
}

}  // namespace crosshatch
