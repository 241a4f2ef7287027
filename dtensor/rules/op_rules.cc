// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rules.h"

namespace crosshatch {

const OpRuleTable& BuiltinOpRules() {
  // Never destroyed, because nothing in it needs a destructor.
  static const OpRuleTable& table = *[] {
    auto* made = new OpRuleTable();
    AddPointwiseRules(*made);
    AddViewRules(*made);
    AddReductionRules(*made);
    AddMatMulRules(*made);
    AddLayerRules(*made);
    AddAttentionRules(*made);
    AddCrossEntropyRules(*made);
    AddIndexRules(*made);
    AddScanAndSortRules(*made);
    AddWindowRules(*made);
    return made;
  }();
  return table;
}

}  // namespace crosshatch
