// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rule.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/redistribution/plan.h"

namespace crosshatch {
namespace {

// The split of each factor, with its unit in elements of the factor.
using Choice = absl::InlinedVector<DimSharding, 6>;

bool IsSummed(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg;
}

// The dims that a specification does not name.
constexpr absl::string_view kRest = "...";

// Stands for dim `d` of them, as a letter stands for itself.
int RestLabel(size_t d) { return -1 - static_cast<int>(d); }

// Returns what stands for each of `ndim` dims. They have the last of `rest`
// dims.
std::vector<int> Labels(absl::string_view dims, size_t ndim, size_t rest) {
  std::vector<int> labels;
  for (size_t k = 0; k < dims.size(); ++k) {
    if (dims.substr(k, kRest.size()) != kRest) {
      labels.push_back(dims[k]);
      continue;
    }
    const size_t count = ndim + kRest.size() - dims.size();
    for (size_t d = rest - count; d < rest; ++d) labels.push_back(RestLabel(d));
    k += kRest.size() - 1;
  }
  return labels;
}

class Solver {
 public:
  Solver(const RuleCall& call, const FactorRule& rule)
      : call_(call), rule_(rule), candidates_(rule.factors.size()) {
    CH_CHECK_EQ(rule.inputs.size(), call.inputs.size())
        << "in the rule of " << DescribeCall(call);
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      CH_CHECK_EQ(rule.inputs[i].size(), call.inputs[i].sizes.size())
          << "in the rule of " << DescribeCall(call);
      CollectCandidates(i);
    }
  }

  RuleResult Solve() {
    std::optional<Choice> agreed = Agreed();
    return ResultOf(agreed.has_value() ? *agreed : Cheapest());
  }

 private:
  bool SameSplit(const DimSharding& a, const DimSharding& b,
                 int64_t size) const {
    if (a == b) return true;
    if (a.axes != b.axes) return false;
    const Layout by_a(call_.mesh, {a});
    const Layout by_b(call_.mesh, {b});
    for (int i = 0; i < call_.mesh.size(); ++i) {
      const MeshCoordinate at = call_.mesh.CoordinateAt(i);
      if (!(by_a.DimInterval(0, size, at) == by_b.DimInterval(0, size, at))) {
        return false;
      }
    }
    return true;
  }

  // Returns whether some dim has several elements for each of the factor.
  bool Wide(int factor) const {
    const auto wide = [factor](const DimFactors& dims) {
      return std::any_of(dims.begin(), dims.end(), [factor](const auto& dim) {
        return dim.factor == factor && dim.width != 1;
      });
    };
    return std::any_of(rule_.inputs.begin(), rule_.inputs.end(), wide) ||
           std::any_of(
               rule_.outputs.begin(), rule_.outputs.end(),
               [&wide](const auto& output) { return wide(output.dims); });
  }

  // Drops the axes that split single elements of a dim with several elements
  // for each of the factor.
  static void DropFineAxes(DimSharding& split) {
    if (!split.cuts.empty() && split.fine_axes == 0) split.fine_axes = 1;
    split.axes.resize(split.axes.size() - split.fine_axes);
    split.fine_axes = 0;
    split.cuts.clear();
  }

  void CollectCandidates(size_t input) {
    const DimFactors& dims = rule_.inputs[input];
    for (size_t d = 0; d < dims.size(); ++d) {
      const DimFactor& dim = dims[d];
      if (dim.factor < 0) continue;
      const DimSharding& split = call_.inputs[input].layout.sharding(d);
      const Factor& factor = rule_.factors[dim.factor];
      if (split.axes.empty()) continue;
      DimSharding candidate = split;
      candidate.unit = (split.unit + dim.width - 1) / dim.width;
      if (Wide(dim.factor)) DropFineAxes(candidate);
      if (candidate.axes.empty()) continue;
      auto& list = candidates_[dim.factor];
      const bool known =
          std::any_of(list.begin(), list.end(), [&](const DimSharding& c) {
            return SameSplit(c, candidate, factor.size);
          });
      if (!known) list.push_back(candidate);
    }
  }

  // Returns the one split of the inputs, if they agree.
  std::optional<Choice> Agreed() const {
    Choice choice(rule_.factors.size());
    absl::InlinedVector<bool, 4> used(call_.mesh.ndim(), false);
    for (size_t f = 0; f < choice.size(); ++f) {
      if (candidates_[f].size() > 1) return std::nullopt;
      if (candidates_[f].empty()) continue;
      choice[f] = candidates_[f][0];
      for (int axis : choice[f].axes) {
        if (used[axis]) return std::nullopt;
        used[axis] = true;
      }
    }
    if (rule_.fixed_input >= 0 && !KeepsFixed(choice)) return std::nullopt;
    return choice;
  }

  bool KeepsFixed(const Choice& choice) const {
    const size_t fixed = rule_.fixed_input;
    const Layout& layout = call_.inputs[fixed].layout;
    for (size_t d = 0; d < rule_.inputs[fixed].size(); ++d) {
      const DimFactor& dim = rule_.inputs[fixed][d];
      const DimSharding& before = layout.sharding(static_cast<int>(d));
      if (dim.factor < 0 || choice[dim.factor].axes.empty()) {
        if (!before.axes.empty()) return false;
        continue;
      }
      DimSharding after = choice[dim.factor];
      after.unit *= dim.width;
      if (!SameSplit(before, after, call_.inputs[fixed].sizes[d])) return false;
    }
    // An axis along which the destination is partial must not split a factor.
    for (const DimSharding& split : choice) {
      for (int axis : split.axes) {
        if (layout.state_of_axis(axis).is_partial()) return false;
      }
    }
    return true;
  }

  // Returns all splits of each factor by axes that split it in some input.
  std::vector<std::vector<DimSharding>> Options() const {
    std::vector<std::vector<DimSharding>> options(candidates_.size());
    for (size_t f = 0; f < candidates_.size(); ++f) {
      for (const DimSharding& candidate : candidates_[f]) {
        const unsigned all = (1u << candidate.axes.size()) - 1;
        for (unsigned mask = all; mask != 0; --mask) {
          DimSharding option;
          option.unit = candidate.unit;
          if (mask == all) option.cuts = candidate.cuts;
          const size_t coarse = candidate.axes.size() - candidate.fine_axes;
          for (size_t i = 0; i < candidate.axes.size(); ++i) {
            if ((mask >> i & 1) == 0) continue;
            option.axes.push_back(candidate.axes[i]);
            if (i >= coarse) ++option.fine_axes;
          }
          if (std::find(options[f].begin(), options[f].end(), option) ==
              options[f].end()) {
            options[f].push_back(option);
          }
        }
      }
      options[f].emplace_back();
    }
    return options;
  }

  Choice Cheapest() const {
    const auto options = Options();
    Choice choice(rule_.factors.size());
    std::optional<Choice> best;
    std::pair<int64_t, int64_t> best_cost;
    const auto visit = [&](auto& self, size_t f, unsigned used) -> void {
      if (f == choice.size()) {
        if (rule_.fixed_input >= 0 && !KeepsFixed(choice)) return;
        const auto cost = CostOf(choice);
        if (!best.has_value() || cost < best_cost) {
          best = choice;
          best_cost = cost;
        }
        return;
      }
      for (const DimSharding& option : options[f]) {
        unsigned axes = 0;
        for (int axis : option.axes) axes |= 1u << axis;
        if ((axes & used) != 0) continue;
        choice[f] = option;
        self(self, f + 1, used | axes);
      }
    };
    visit(visit, 0, 0);
    CH_CHECK(best.has_value())
        << DescribeCall(call_)
        << ": the op writes in place and would change the layout of what it "
           "writes to; redistribute first";
    return *best;
  }

  // Returns the weight of redistributing the inputs, and the reductions that
  // stay pending.
  std::pair<int64_t, int64_t> CostOf(const Choice& choice) const {
    const RedistributeCostModel model;
    int64_t before = 0;
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      const RuleInput& input = call_.inputs[i];
      auto plan = PlanRedistribute(input.layout, TargetOf(choice, i),
                                   input.sizes, SizeOf(input.dtype), model);
      CH_CHECK_OK(plan.status());
      before += model.Weight(plan->cost);
    }
    int64_t pending = 0;
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      if (OutputLayout(choice, i).is_partial()) {
        pending += NumElements(rule_.outputs[i].sizes);
      }
    }
    return {before, pending};
  }

  // Returns the reduction over `axis` that stays pending from inputs to
  // outputs, if any.
  // \pre no factor is split by the axis.
  std::optional<ReduceOp> Kept(int axis) const {
    if (rule_.linearity == Linearity::kNone) return std::nullopt;
    if (rule_.fixed_input >= 0 && rule_.linearity != Linearity::kMultilinear) {
      // Values written to a partial destination become partial, too.
      const AxisState& written =
          call_.inputs[rule_.fixed_input].layout.state_of_axis(axis);
      const bool keeps =
          rule_.linearity == Linearity::kMove || IsSummed(written.op);
      if (written.is_partial()) {
        return keeps ? std::optional<ReduceOp>(written.op) : std::nullopt;
      }
    }
    std::optional<ReduceOp> op;
    size_t partial = 0;
    size_t which = 0;
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      const AxisState& state = call_.inputs[i].layout.state_of_axis(axis);
      if (!state.is_partial()) continue;
      if (rule_.linearity != Linearity::kMove && !IsSummed(state.op)) {
        return std::nullopt;
      }
      if (op.has_value() && *op != state.op) return std::nullopt;
      op = state.op;
      which = i;
      ++partial;
    }
    if (partial == 0) return std::nullopt;
    if (rule_.linearity == Linearity::kMultilinear) {
      return partial == 1 && (rule_.linear_inputs >> which & 1) ? op
                                                                : std::nullopt;
    }
    return partial == call_.inputs.size() ? op : std::nullopt;
  }

  bool Splits(const Choice& choice, int axis) const {
    return std::any_of(choice.begin(), choice.end(), [&](const auto& split) {
      return std::find(split.axes.begin(), split.axes.end(), axis) !=
             split.axes.end();
    });
  }

  std::vector<DimSharding> DimsOf(const Choice& choice,
                                  const DimFactors& factors) const {
    std::vector<DimSharding> dims(factors.size());
    for (size_t d = 0; d < factors.size(); ++d) {
      if (factors[d].factor < 0) continue;
      dims[d] = choice[factors[d].factor];
      dims[d].unit *= factors[d].width;
    }
    return dims;
  }

  Layout TargetOf(const Choice& choice, size_t input) const {
    const Layout& from = call_.inputs[input].layout;
    Layout::Partials partials(call_.mesh.ndim());
    for (int axis = 0; axis < call_.mesh.ndim(); ++axis) {
      if (Splits(choice, axis)) continue;
      const std::optional<ReduceOp> kept = Kept(axis);
      if (!kept.has_value()) continue;
      if (rule_.linearity != Linearity::kMultilinear ||
          from.state_of_axis(axis).is_partial()) {
        partials[axis] = kept;
      }
    }
    return Layout(call_.mesh, DimsOf(choice, rule_.inputs[input]), partials);
  }

  Layout OutputLayout(const Choice& choice, size_t index) const {
    const FactorRule::Output& output = rule_.outputs[index];
    Layout::Partials partials(call_.mesh.ndim());
    for (int axis = 0; axis < call_.mesh.ndim(); ++axis) {
      if (!Splits(choice, axis)) partials[axis] = Kept(axis);
    }
    for (size_t f = 0; f < choice.size(); ++f) {
      const bool held = std::any_of(
          output.dims.begin(), output.dims.end(),
          [f](const DimFactor& d) { return d.factor == static_cast<int>(f); });
      if (held) continue;
      for (int axis : choice[f].axes) partials[axis] = rule_.factors[f].op;
    }
    return Layout(call_.mesh, DimsOf(choice, output.dims), partials);
  }

  RuleResult ResultOf(const Choice& choice) const {
    RuleResult result;
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      result.inputs.push_back(TargetOf(choice, i));
    }
    for (size_t i = 0; i < rule_.outputs.size(); ++i) {
      result.outputs.push_back(
          {OutputLayout(choice, i), rule_.outputs[i].sizes});
    }
    if (rule_.fixed_input >= 0) {
      const size_t fixed = rule_.fixed_input;
      const Layout& layout = call_.inputs[fixed].layout;
      CH_CHECK(result.inputs[fixed].partials() == layout.partials())
          << DescribeCall(call_)
          << ": the op writes in place to a tensor whose reductions are "
             "pending; redistribute first";
      // The same split with another unit gives the same shard.
      result.inputs[fixed] = layout;
      result.outputs[0].layout = layout;
    }
    return result;
  }

  const RuleCall& call_;
  const FactorRule& rule_;
  // By factor: the distinct splits of the inputs, in the inputs' order.
  std::vector<std::vector<DimSharding>> candidates_;
};

}  // namespace

RuleResult SolveFactors(const RuleCall& call, const FactorRule& rule) {
  return Solver(call, rule).Solve();
}

FactorRule Einsum(const RuleCall& call, absl::string_view specification,
                  ShapeView new_sizes) {
  const std::pair<absl::string_view, absl::string_view> sides =
      absl::StrSplit(specification, "->");
  const std::vector<absl::string_view> inputs =
      absl::StrSplit(sides.first, ',');
  CH_CHECK_EQ(inputs.size(), call.inputs.size()) << DescribeCall(call);
  Shape rest;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t at = inputs[i].find(kRest);
    if (at == inputs[i].npos || !call.inputs[i].defined) continue;
    const ShapeView sizes = call.inputs[i].sizes;
    const size_t named = inputs[i].size() - kRest.size();
    CH_CHECK(named <= sizes.size()) << DescribeCall(call);
    rest = BroadcastShapes(rest, sizes.subspan(at, sizes.size() - named),
                           call.op.info().name);
  }
  std::vector<std::vector<int>> labels;
  std::map<int, int64_t> size_of;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Shape& sizes = call.inputs[i].sizes;
    const bool defined = call.inputs[i].defined;
    labels.push_back(defined ? Labels(inputs[i], sizes.size(), rest.size())
                             : std::vector<int>());
    CH_CHECK_EQ(labels[i].size(), sizes.size())
        << DescribeCall(call) << ": its rule is " << specification;
    for (size_t d = 0; d < sizes.size(); ++d) {
      size_of.emplace(labels[i][d], sizes[d]);
    }
  }
  size_of.erase('_');
  // Of splits of equal cost the solver takes the first, so the order of the
  // factors is one for all transpositions: the remaining dims, then by letter.
  FactorRule rule;
  std::map<int, DimFactor> dim_of;
  for (size_t d = 0; d < rest.size(); ++d) {
    size_of[RestLabel(d)] = rest[d];
    dim_of[RestLabel(d)] = {rule.Add(rest[d])};
  }
  for (const auto& [label, size] : size_of) {
    if (label >= 'a' && label <= 'z') dim_of[label] = {rule.Add(size)};
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    DimFactors& dims = rule.inputs.emplace_back();
    for (size_t d = 0; d < labels[i].size(); ++d) {
      const int label = labels[i][d];
      const bool repeats =
          label != '_' && call.inputs[i].sizes[d] != size_of[label];
      dims.push_back(repeats ? DimFactor{} : dim_of[label]);
    }
  }
  size_t next_new = 0;
  for (absl::string_view output : absl::StrSplit(sides.second, ',')) {
    FactorRule::Output& made = rule.outputs.emplace_back();
    const size_t ndim = output.find(kRest) == output.npos
                            ? output.size()
                            : output.size() - kRest.size() + rest.size();
    for (int label : Labels(output, ndim, rest.size())) {
      const auto known = size_of.find(label);
      made.dims.push_back(dim_of[label]);
      made.sizes.push_back(known != size_of.end() ? known->second
                                                  : new_sizes[next_new++]);
    }
  }
  return rule;
}

FactorRule PointwiseFactors(const RuleCall& call, Linearity linearity) {
  const std::vector<absl::string_view> inputs(call.inputs.size(), "...");
  FactorRule rule =
      Einsum(call, absl::StrCat(absl::StrJoin(inputs, ","), "->..."));
  rule.linearity = linearity;
  if (call.op.info().in_place) {
    CH_CHECK(call.inputs[0].sizes == rule.outputs[0].sizes)
        << DescribeCall(call) << ": the result does not fit the tensor that it "
        << "is written to";
    rule.fixed_input = 0;
  }
  return rule;
}

OpRule EinsumRule(absl::string_view specification, Linearity linearity,
                  uint32_t linear_inputs) {
  return [=, specification = std::string(specification)](const RuleCall& call) {
    FactorRule rule = Einsum(call, specification);
    rule.linearity = linearity;
    rule.linear_inputs = linear_inputs;
    return SolveFactors(call, rule);
  };
}

std::string DescribeCall(const RuleCall& call) {
  std::string text = absl::StrCat(call.op.info().name, "(");
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const RuleInput& input = call.inputs[i];
    if (i > 0) text += ", ";
    if (!input.defined) {
      text += "none";
      continue;
    }
    absl::StrAppend(&text, Name(input.dtype), ToString(input.sizes),
                    input.plain ? " plain" : "|",
                    input.plain ? "" : input.layout.ToString());
  }
  return text + ")";
}

}  // namespace crosshatch
