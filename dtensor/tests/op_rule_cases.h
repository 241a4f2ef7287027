// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
#define CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_

/// \file
/// Calls of every op that has a sharding rule, for the tests that compare each
/// on many layouts with the same call on plain tensors. An op that gets a rule
/// gets a case here.

#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct CaseInput {
  enum Kind {
    kWhole,     ///< Small whole numbers: sums of products of them are exact.
    kFraction,  ///< Between -1 and 1.
    kPositive,  ///< Between 0.5 and 2.5.
    kIds,       ///< i64, below `ids`.
  };
  Shape sizes;
  Kind kind = kWhole;
  int ids = 0;
  /// Whether it is tried with pending sums too. Never of ids.
  bool sums = true;
};

struct RuleCase {
  const char* name;
  std::vector<CaseInput> inputs;
  /// Calls the op. Of inputs that are not ids gradients are compared too, if
  /// the result has any.
  std::function<Tensor(TensorSpan)> run;
  /// 0 where all arithmetic is on small whole numbers.
  double tolerance = 0;
  /// Whether the op can be done on inputs in these layouts; null where it can
  /// in all. What it refuses other tests check.
  std::function<bool(absl::Span<const Layout>)> takes = nullptr;
};

/// Where results are rounded.
inline constexpr double kRounding = 2e-5;

struct RuleFamily {
  const char* name;
  std::vector<RuleCase> cases;
  /// Gradients of gradients are compared too.
  bool twice = false;
};

/// All there are.
std::vector<RuleFamily> RuleFamilies();

/// \name By family
/// @{
std::vector<RuleCase> PointwiseCases();
std::vector<RuleCase> InPlaceCases();
std::vector<RuleCase> ReductionCases();
std::vector<RuleCase> StatisticsCases();
/// Running sums and sorts.
std::vector<RuleCase> LaneCases();
std::vector<RuleCase> ViewCases();
/// Windows of images, and convolutions.
std::vector<RuleCase> WindowCases();
std::vector<RuleCase> MatMulCases();
std::vector<RuleCase> LayerCases();
std::vector<RuleCase> AttentionCases();
std::vector<RuleCase> LookupCases();
std::vector<RuleCase> IndexCases();
/// Of ops whose gradients have gradients.
std::vector<RuleCase> TwiceCases();
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_TESTS_OP_RULE_CASES_H_
