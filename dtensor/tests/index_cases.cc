// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;
using enum CaseInput::Kind;

}  // namespace

std::vector<RuleCase> IndexCases() {
  return {
      {"gather",
       {{{3, 5}}, {{3, 4}, kIds, 5}},
       [](T t) { return Gather(t[0], 1, t[1]); }},
      {"gather rows",
       {{{5, 2}}, {{3, 2}, kIds, 5}},
       [](T t) { return Gather(t[0], 0, t[1]); }},
      {"gather of none",
       {{{5, 0}}, {{3, 0}, kIds, 5}},
       [](T t) { return Gather(t[0], 0, t[1]); }},
      {"gather twice",
       {{{1, 3}}, {{1, 7}, kIds, 3}},
       [](T t) { return Square(Gather(t[0], 1, t[1])); }},
      {"gather of bool",
       {{{5, 2}}, {{3, 2}, kIds, 5}},
       [](T t) { return Gather(Greater(t[0], ZerosLike(t[0])), 0, t[1]); }},
      {"gather of integers",
       {{{5, 2}}, {{3, 2}, kIds, 5}},
       [](T t) { return Gather(ToDType(t[0], kInt32), 0, t[1]); }},
      {"gather plain",
       {{{4, 3}}},
       [](T t) {
         return Gather(t[0], 0,
                       FromValues<int64_t>(
                           {2, 3}, std::vector<int64_t>{3, 0, 1, 3, 2, 2}));
       }},
      {"index_select",
       {{{5, 3}}, {{4}, kIds, 5}},
       [](T t) { return IndexSelect(t[0], 0, t[1]); }},
      {"index_select columns",
       {{{2, 7}}, {{3}, kIds, 7}},
       [](T t) { return IndexSelect(t[0], 1, t[1]); }},
      {"index_select plain",
       {{{2, 3, 4}}},
       [](T t) {
         return IndexSelect(
             t[0], 1,
             FromValues<int64_t>({4}, std::vector<int64_t>{2, 2, 0, 1}));
       }},
      {"scatter_add",
       {{{3, 5}}, {{3, 4}, kIds, 5}, {{3, 4}}},
       [](T t) { return ScatterAdd(t[0], 1, t[1], t[2]); }},
      {"scatter_add rows",
       {{{2, 2}}, {{5, 2}, kIds, 2}, {{5, 2}}},
       [](T t) { return ScatterAdd(t[0], 0, t[1], t[2]); }},
      {"scatter",
       {{{3, 3}}, {{3, 4}, kIds, 3}, {{3, 4}}},
       [](T t) { return Scatter(t[0], 1, t[1], t[2]); }},
      {"scatter rows",
       {{{5, 2}}, {{3, 2}, kIds, 5}, {{3, 2}}},
       [](T t) { return Scatter(t[0], 0, t[1], t[2]); }},
      {"scatter a value",
       {{{5, 2}}, {{3, 2}, kIds, 5}},
       [](T t) { return Scatter(t[0], 0, t[1], 9); }},
      {"dropout", {{{3, 5}}}, [](T t) { return Dropout(t[0], 0.5, 7, 3); }},
      {"dropout 3d",
       {{{2, 3, 5}}},
       [](T t) { return Square(Dropout(t[0], 0.5, 7, 4)); }},
  };
}

}  // namespace crosshatch
