// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/op_rule_check.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/dtensor_testutil.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

Tensor Make(const CaseInput& input, int seed) {
  switch (input.kind) {
    case CaseInput::kWhole:
      return Numbers(input.sizes, seed);
    case CaseInput::kFraction:
      return Fractions(input.sizes, seed);
    case CaseInput::kPositive:
      return Add(Fractions(input.sizes, seed), 1.5);
    case CaseInput::kIds: {
      std::vector<int64_t> ids(NumElements(input.sizes));
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int64_t>((i * 7 + seed) % input.ids);
      }
      return FromValues<int64_t>(input.sizes, ids);
    }
  }
  return Tensor();
}

struct Outcome {
  Tensor result;
  /// Gradients of the weighted sum of the result, by the inputs that require
  /// gradients.
  std::vector<Tensor> grads;
  /// Gradients of a weighted sum of `grads`, if requested.
  TensorList second;
};

Tensor WeightedSum(const Tensor& t, int seed) {
  return Sum(Mul(t, ReplicatedLike(Numbers(t.sizes(), seed), t)));
}

absl::StatusOr<TensorList> SecondGradients(const Tensor& root,
                                           absl::Span<const Tensor> leaves) {
  CH_ASSIGN_OR_RETURN(const TensorList first,
                      Gradients(root, leaves, {.create_graph = true}));
  Tensor sum;
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].defined() || !first[i].requires_grad()) continue;
    const Tensor term = WeightedSum(first[i], 55 + static_cast<int>(i));
    sum = sum.defined() ? Add(sum, term) : term;
  }
  if (!sum.defined()) return TensorList();
  return Gradients(sum, leaves);
}

// \param gradient the layout in which the gradient of the result is passed;
//     null: that of the weighted sum.
Outcome Run(const RuleCase& c, bool twice, std::vector<Tensor> inputs,
            const Layout* gradient = nullptr) {
  std::vector<Tensor> leaves;
  for (Tensor& t : inputs) {
    if (!IsFloatingPoint(t.dtype())) continue;
    t.set_requires_grad(true);
    leaves.push_back(t);
  }
  Outcome outcome;
  outcome.result = c.run(inputs);
  if (!outcome.result.requires_grad()) return outcome;
  const Tensor sent = gradient == nullptr
                          ? outcome.result
                          : WithGradientIn(outcome.result, *gradient);
  const Tensor root = WeightedSum(sent, 99);
  absl::Status status = Backward(root, {.retain_graph = twice});
  for (const Tensor& t : leaves) outcome.grads.push_back(t.grad());
  if (twice) {
    absl::StatusOr<TensorList> second = SecondGradients(root, leaves);
    status.Update(second.status());
    if (second.ok()) outcome.second = *std::move(second);
  }
  CH_EXPECT_OK(status) << c.name << ": " << status;
  return outcome;
}

// Returns a description of the difference; empty if there is none.
std::string Compare(absl::Span<const Tensor> inputs, const Outcome& actual,
                    const Outcome& expected, double tolerance) {
  std::string wrong = Differs(actual.result, expected.result, tolerance);
  if (!wrong.empty()) return wrong;
  if (actual.grads.size() != expected.grads.size() ||
      actual.second.size() != expected.second.size()) {
    return "gradients are missing";
  }
  size_t g = 0;
  for (const Tensor& input : inputs) {
    if (actual.grads.empty() || !IsFloatingPoint(input.dtype())) continue;
    if (!actual.grads[g].defined() && !expected.grads[g].defined()) {
      ++g;  // The result does not depend on it.
      continue;
    }
    wrong = Differs(actual.grads[g], expected.grads[g], tolerance);
    if (wrong.empty() && LayoutOf(actual.grads[g]) != LayoutOf(input)) {
      wrong = "not of its leaf's layout";
    }
    if (!wrong.empty()) return absl::StrCat("gradient ", g, ": ", wrong);
    ++g;
  }
  for (size_t i = 0; i < actual.second.size(); ++i) {
    if (!actual.second[i].defined() && !expected.second[i].defined()) continue;
    wrong = expected.second[i].defined()
                ? Differs(actual.second[i], expected.second[i], tolerance)
                : "undefined with plain tensors";
    if (!wrong.empty()) return absl::StrCat("second gradient ", i, ": ", wrong);
  }
  return "";
}

// Records the calls that the rank has plans for, and clears the plans.
void NoteCalls(RuleTally& tally) {
  auto& plans = DispatchCache::Current().plans();
  for (const auto& [key, plan] : plans) {
    tally.ops.insert(reinterpret_cast<const OpInfo*>(key[0]));
  }
  tally.calls += static_cast<int64_t>(plans.size());
  plans.clear();
}

// The combinations of layouts of a case's inputs. In their numbering the layout
// of the first input changes fastest.
class Combinations {
 public:
  Combinations(const RuleCase& c, std::vector<std::vector<Layout>> layouts)
      : layouts_(std::move(layouts)) {
    for (const std::vector<Layout>& of_input : layouts_) {
      size_ *= of_input.size();
    }
    if (c.takes == nullptr) return;
    // Filtered before the selection, because a stride through all combinations
    // may hit few accepted ones, or none.
    std::vector<size_t> admitted;
    for (size_t number = 0; number < size_; ++number) {
      if (c.takes(OfNumber(number))) admitted.push_back(number);
    }
    size_ = admitted.size();
    admitted_ = std::move(admitted);
  }

  // Returns the number of combinations that the case accepts.
  size_t size() const { return size_; }

  // \returns the layout of each input in the accepted combination `at`
  std::vector<Layout> operator[](size_t at) const {
    return OfNumber(admitted_.has_value() ? (*admitted_)[at] : at);
  }

  // Returns a stride that, taken cyclically, visits each combination once
  // before any again, and all layouts of each input if the case accepts all.
  size_t StrideFor(size_t most) const {
    if (size_ <= most) return 1;
    const auto meets_all = [this](size_t stride) {
      return std::gcd(stride, size_) == 1 &&
             std::all_of(layouts_.begin(), layouts_.end(),
                         [stride](const auto& of_input) {
                           return std::gcd(stride, of_input.size()) == 1;
                         });
    };
    size_t stride = (size_ + most - 1) / most;
    while (!meets_all(stride)) ++stride;
    return stride;
  }

 private:
  std::vector<Layout> OfNumber(size_t number) const {
    std::vector<Layout> chosen;
    for (const std::vector<Layout>& of_input : layouts_) {
      chosen.push_back(of_input[number % of_input.size()]);
      number /= of_input.size();
    }
    return chosen;
  }

  std::vector<std::vector<Layout>> layouts_;
  size_t size_ = 1;
  // The numbers of the accepted combinations; nullopt: all.
  std::optional<std::vector<size_t>> admitted_;
};

void CheckCase(const RuleCase& c, bool twice, size_t most,
               const RuleLayouts& tried, const DeviceMesh& mesh,
               RuleTally& tally) {
  std::vector<Tensor> dense;
  std::vector<std::vector<Layout>> layouts;
  for (const CaseInput& input : c.inputs) {
    dense.push_back(Make(input, static_cast<int>(dense.size()) + 1));
    const bool sums = input.sums && input.kind != CaseInput::kIds;
    layouts.push_back(AllLayouts(
        mesh.layout(), static_cast<int>(input.sizes.size()),
        sums ? tried.reductions : std::vector<ReduceOp>(), tried.unit));
  }
  const Outcome expected = Run(c, twice, dense);
  // Averages over three ranks are rounded.
  const bool averages = std::count(tried.reductions.begin(),
                                   tried.reductions.end(), ReduceOp::kAvg) != 0;
  const bool rounds =
      std::any_of(c.inputs.begin(), c.inputs.end(), [](const CaseInput& input) {
        return input.kind == CaseInput::kFraction ||
               input.kind == CaseInput::kPositive;
      });
  double tolerance = c.tolerance.value_or(rounds ? kRounding : 0);
  if (averages) tolerance = std::max(tolerance, kRounding);
  const Combinations combinations(c, std::move(layouts));
  const size_t count = std::min(most, combinations.size());
  const size_t stride = combinations.StrideFor(most);
  const std::vector<Layout> gradients =
      AllLayouts(mesh.layout(), expected.result.ndim(),
                 std::vector<ReduceOp>{ReduceOp::kSum}, tried.unit);
  for (size_t i = 0; i < count; ++i) {
    const std::vector<Layout> chosen =
        combinations[(stride / 2 + i * stride) % combinations.size()];
    std::vector<Tensor> inputs;
    std::string name = c.name;
    for (size_t k = 0; k < dense.size(); ++k) {
      inputs.push_back(Spread(dense[k], mesh, chosen[k]));
      absl::StrAppend(&name, " ", chosen[k].ToString());
    }
    // Each layout in turn, and once per round the one that the ops give.
    const size_t turn = i % (gradients.size() + 1);
    const Layout* gradient = turn == 0 ? nullptr : &gradients[turn - 1];
    if (gradient != nullptr) {
      absl::StrAppend(&name, ", gradient ", gradient->ToString());
    }
    ++tally.combinations;
    CH_EXPECT_EQ(
        Compare(inputs, Run(c, twice, inputs, gradient), expected, tolerance),
        "")
        << name;
  }
  NoteCalls(tally);
}

}  // namespace

void RuleTally::Add(const RuleTally& other) {
  ops.insert(other.ops.begin(), other.ops.end());
  calls += other.calls;
  combinations += other.combinations;
}

RuleTally CheckRules(const std::vector<int>& mesh_shape,
                     const RuleFamily& family, size_t most,
                     const RuleLayouts& tried) {
  RuleTally result;
  OnMesh(mesh_shape, [&](const DeviceMesh& mesh) {
    if (family.on_each_rank) family.on_each_rank();
    RuleTally tally;
    for (const RuleCase& c : family.cases) {
      CheckCase(c, family.twice, most, tried, mesh, tally);
    }
    if (mesh.world().rank() == 0) result = tally;
  });
  return result;
}

}  // namespace crosshatch
