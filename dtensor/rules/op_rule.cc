// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/rules/op_rule.h"

#include "absl/strings/str_cat.h"

namespace crosshatch {

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
