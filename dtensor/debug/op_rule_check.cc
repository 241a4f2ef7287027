// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/debug/op_rule_check.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dispatch/dispatch_cache.h"
#include "crosshatch/dtensor/dispatch/dispatch_plan.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/dtensor/ops/dtensor.h"
#include "crosshatch/dtensor/ops/dtensor_testutil.h"
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
  /// Of the weighted sum of the result, by the inputs that have gradients.
  std::vector<Tensor> grads;
  /// Of a weighted sum of `grads`, where asked for.
  TensorList second;
};

Tensor WeightedSum(const Tensor& t, int seed) {
  return Sum(Mul(t, ReplicatedLike(Numbers(t.sizes(), seed), t)));
}

absl::Status SecondGradients(const Tensor& root,
                             absl::Span<const Tensor> leaves,
                             TensorList& second) {
  TensorList first;
  absl::Status status = Gradients(root, leaves, {.create_graph = true}, first);
  Tensor sum;
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].defined() || !first[i].requires_grad()) continue;
    const Tensor term = WeightedSum(first[i], 55 + static_cast<int>(i));
    sum = sum.defined() ? Add(sum, term) : term;
  }
  if (!sum.defined()) return status;
  status.Update(Gradients(sum, leaves, {}, second));
  return status;
}

Outcome Run(const RuleCase& c, bool twice, std::vector<Tensor> inputs) {
  std::vector<Tensor> leaves;
  for (Tensor& t : inputs) {
    if (!IsFloatingPoint(t.dtype())) continue;
    t.set_requires_grad(true);
    leaves.push_back(t);
  }
  Outcome outcome;
  outcome.result = c.run(inputs);
  if (!outcome.result.requires_grad()) return outcome;
  absl::Status status =
      Backward(WeightedSum(outcome.result, 99), {.retain_graph = twice});
  for (const Tensor& t : leaves) outcome.grads.push_back(t.grad());
  if (twice) {
    status.Update(SecondGradients(WeightedSum(outcome.result, 99), leaves,
                                  outcome.second));
  }
  CH_EXPECT_OK(status) << c.name << ": " << status;
  return outcome;
}

// Empty if nothing is wrong.
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

// Notes the calls that the rank has plans for, and forgets the plans.
void NoteCalls(RuleTally& tally) {
  auto& plans = DispatchCache::Current().plans();
  for (const auto& [key, plan] : plans) {
    tally.ops.insert(reinterpret_cast<const OpInfo*>(key[0]));
  }
  tally.calls += static_cast<int64_t>(plans.size());
  plans.clear();
}

// Coprime to the number of layouts of each input, so that steps of it meet all
// layouts of each.
size_t StrideFor(size_t combinations, size_t most,
                 const std::vector<std::vector<Layout>>& layouts) {
  if (combinations <= most) return 1;
  const auto meets_all = [&layouts](size_t stride) {
    return std::all_of(layouts.begin(), layouts.end(), [stride](const auto& l) {
      return std::gcd(stride, l.size()) == 1;
    });
  };
  size_t stride = (combinations + most - 1) / most;
  while (!meets_all(stride)) ++stride;
  return stride;
}

// Of one case, on one rank.
void CheckCase(const RuleCase& c, bool twice, size_t most,
               const RuleLayouts& tried, const DeviceMesh& mesh,
               RuleTally& tally) {
  std::vector<Tensor> dense;
  std::vector<std::vector<Layout>> layouts;
  size_t combinations = 1;
  for (const CaseInput& input : c.inputs) {
    dense.push_back(Make(input, static_cast<int>(dense.size()) + 1));
    const bool sums = input.sums && input.kind != CaseInput::kIds;
    layouts.push_back(AllLayouts(
        mesh.layout(), static_cast<int>(input.sizes.size()),
        sums ? tried.reductions : std::vector<ReduceOp>(), tried.unit));
    combinations *= layouts.back().size();
  }
  const Outcome expected = Run(c, twice, dense);
  // Averages over three ranks are rounded.
  const bool averages = std::count(tried.reductions.begin(),
                                   tried.reductions.end(), ReduceOp::kAvg) != 0;
  const double tolerance =
      averages ? std::max(c.tolerance, kRounding) : c.tolerance;
  const size_t stride = StrideFor(combinations, most, layouts);
  for (size_t at = (combinations - 1) % stride / 2; at < combinations;
       at += stride) {
    std::vector<Tensor> inputs;
    std::vector<Layout> chosen;
    std::string name = c.name;
    size_t rest = at;
    for (size_t i = 0; i < dense.size(); ++i) {
      const Layout& layout = layouts[i][rest % layouts[i].size()];
      rest /= layouts[i].size();
      chosen.push_back(layout);
      absl::StrAppend(&name, " ", layout.ToString());
    }
    if (c.takes != nullptr && !c.takes(chosen)) continue;
    for (size_t i = 0; i < dense.size(); ++i) {
      inputs.push_back(Spread(dense[i], mesh, chosen[i]));
    }
    ++tally.combinations;
    CH_EXPECT_EQ(Compare(inputs, Run(c, twice, inputs), expected, tolerance),
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
