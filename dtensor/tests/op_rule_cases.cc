// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/tests/op_rule_cases.h"

#include <vector>

namespace crosshatch {

std::vector<RuleFamily> RuleFamilies() {
  return {
      {"Pointwise", PointwiseCases()},
      {"InPlace", InPlaceCases()},
      {"Reduction", ReductionCases()},
      {"Statistics", StatisticsCases()},
      {"ScanAndSort", ScanAndSortCases()},
      {"View", ViewCases()},
      {"Window", WindowCases()},
      {"MatMul", MatMulCases()},
      {"Layer", LayerCases()},
      {"Attention", AttentionCases()},
      {"Lookup", LookupCases()},
      {"Index", IndexCases()},
      {"Twice", TwiceCases(), true},
  };
}

}  // namespace crosshatch
