// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "crosshatch/dtensor/layout/view_layout.h"
#include "crosshatch/dtensor/tests/op_rule_cases.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"

namespace crosshatch {
namespace {

using T = TensorSpan;

RuleCase ViewCase(const char* name, Shape from, Shape to) {
  return {name,
          {{from}},
          [to](T t) { return View(t[0], to); },
          [from, to](absl::Span<const Layout> layouts) {
            return ViewLayout(layouts[0], from, to).has_value();
          }};
}

}  // namespace

std::vector<RuleCase> ViewCases() {
  return {
      {"transpose", {{{3, 5}}}, [](T t) { return Transpose(t[0], 0, 1); }},
      {"permute",
       {{{2, 3, 5}}},
       [](T t) {
         return Permute(t[0], {2, 0, 1});
       }},
      {"slice", {{{5, 3}}}, [](T t) { return Slice(t[0], 0, 1, 4); }},
      {"slice all", {{{5, 3}}}, [](T t) { return Slice(t[0], 0, 0, 5); }},
      {"expand",
       {{{1, 3}}},
       [](T t) {
         return Expand(t[0], {2, 4, 3});
       }},
      // Elements that share memory are exchanged between ranks.
      {"slice of what was expanded",
       {{{5, 1}}},
       [](T t) {
         return Slice(Expand(t[0], {5, 2}), 0, 3, 4);
       }},
      {"pad of what was expanded",
       {{{5, 3}}},
       [](T t) {
         return Pad(Expand(t[0], {2, 5, 3}), 1, 1, 0);
       }},
      {"unsqueeze", {{{3, 5}}}, [](T t) { return Unsqueeze(t[0], 1); }},
      {"cat",
       {{{2, 3}}, {{4, 3}}},
       [](T t) {
         return Cat({t[0], t[1]}, 0);
       }},
      {"pad", {{{3, 2}}}, [](T t) { return Pad(t[0], 1, 1, 2); }},
      {"cat of one dim",
       {{{2, 3}}, {{2, 2}}, {{2, 0}}},
       [](T t) {
         return Cat({t[0], t[1], t[2]}, 1);
       }},
      {"stack",
       {{{2, 3}}, {{2, 3}}},
       [](T t) {
         return Stack({t[0], t[1]}, 1);
       }},
      {"split",
       {{{2, 5}}},
       [](T t) {
         const TensorList parts = Split(t[0], {1, 0, 4}, 1);
         return Cat({parts[2], Mul(parts[0], 2), parts[1]}, 1);
       }},
      {"split in three",
       {{{12, 2}}},
       [](T t) {
         const TensorList parts = Split(t[0], {6, 4, 2}, 0);
         const Tensor products = MatMul(parts[0], parts[1], false, true);
         return Add(MatMul(products, parts[1]), Pad(parts[2], 0, 1, 3));
       }},
      {"chunk",
       {{{7, 2}}},
       [](T t) {
         const TensorList parts = Chunk(t[0], 3, 0);
         return Add(parts[0], Mul(parts[1], 2));
       }},
      {"unbind",
       {{{3, 5}}},
       [](T t) {
         const TensorList parts = Unbind(t[0], 0);
         return Add(Mul(parts[0], parts[2]), parts[1]);
       }},
      {"merge units",
       {{{4, 2}}, {{2, 2}}},
       [](T t) {
         return MergeUnits({t[0], t[1]}, {2, 1}, 0);
       },
       [](absl::Span<const Layout> layouts) {
         return ViewLayout(layouts[0], {4, 2}, {2, 2, 2}).has_value();
       }},
      {"split units",
       {{{6, 2}}},
       [](T t) {
         const TensorList parts = SplitUnits(t[0], {2, 1}, 0);
         return MatMul(parts[0], parts[1], false, true);
       },
       [](absl::Span<const Layout> layouts) {
         return ViewLayout(layouts[0], {6, 2}, {2, 3, 2}).has_value();
       }},
      {"pad of what was narrowed",
       {{{6, 2}}},
       [](T t) { return Pad(Narrow(t[0], 0, 2, 3), 0, 4, 1); }},
      {"narrow and select",
       {{{4, 5}}},
       [](T t) { return Select(Narrow(t[0], 1, 1, 3), 0, 2); }},
      {"slice of none", {{{5, 3}}}, [](T t) { return Slice(t[0], 0, 2, 2); }},
      {"squeeze",
       {{{3, 5}}},
       [](T t) { return Squeeze(Unsqueeze(t[0], 1), 1); }},
      {"squeeze of a dim that may be split",
       {{{1, 5}}},
       [](T t) { return Squeeze(t[0], 0); }},
      {"select the only one",
       {{{3, 1, 2}}},
       [](T t) { return Select(t[0], 1, -1); }},
      // The result has no dims, so no rank can have more of one.
      {"select the only one of a vector",
       {{{1}}},
       [](T t) { return Select(t[0], 0, 0); }},
      {"squeeze of all dims",
       {{{1, 1}}},
       [](T t) { return Squeeze(Squeeze(t[0], 0), 0); }},
      {"select the only one of what was narrowed",
       {{{1, 4}}},
       [](T t) { return Select(Narrow(t[0], 0, 0, 1), 0, 0); }},
      {"flatten single dims", {{{1, 1, 5}}}, [](T t) { return Flatten(t[0]); }},
      ViewCase("merge", {4, 3}, {12}),
      ViewCase("merge of pairs", {2, 2, 3}, {4, 3}),
      ViewCase("merge of the last dims", {3, 2, 4}, {3, 8}),
      ViewCase("split", {12}, {4, 3}),
      ViewCase("split of the last dim", {3, 8}, {3, 4, 2}),
      ViewCase("split and merge", {2, 6}, {4, 3}),
      ViewCase("of none", {0, 3}, {3, 0}),
      {"unflatten",
       {{{3, 8}}},
       [](T t) {
         return Unflatten(t[0], 1, {4, -1});
       },
       [](absl::Span<const Layout> layouts) {
         return ViewLayout(layouts[0], {3, 8}, {3, 4, 2}).has_value();
       }},
      {"move dim", {{{2, 3, 5}}}, [](T t) { return MoveDim(t[0], 0, -1); }},
      {"repeat",
       {{{2, 3}}},
       [](T t) {
         return Repeat(t[0], {2, 1, 3});
       }},
  };
}

namespace {

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
