// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
}  // namespace

std::vector<RuleCase> WindowCases() {
  return {
      {"unfold",
       {{{3, 2, 3, 4}}},
       [](T t) {
         return Unfold(t[0], {2, 3}, {.padding = {1, 0}});
       }},
      {"unfold of few",
       {{{1, 3, 1, 5}}},
       [](T t) {
         return Unfold(t[0], {1, 2}, {.stride = {1, 2}});
       }},
      {"conv",
       {{{2, 3, 2, 3}}, {{5, 3, 1, 2}}, {{5}}},
       [](T t) { return Conv2d(t[0], t[1], t[2]); }},
      {"conv of groups",
       {{{2, 4, 1, 3}}, {{2, 2, 1, 2}}},
       [](T t) { return Conv2d(t[0], t[1], Tensor(), {.groups = 2}); }},
      {"conv of no images",
       {{{0, 3, 5}}, {{2, 3, 2}}},
       [](T t) { return Conv1d(t[0], t[1]); }},
  };
}

}  // namespace crosshatch
