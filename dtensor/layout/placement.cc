// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/placement.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {

std::string Placement::ToString() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return absl::StrCat("S(", dim_, ")");
    case Kind::kStridedShard:
      return absl::StrCat("_S(", dim_, ",", split_factor_, ")");
    case Kind::kPartial:
      return absl::StrCat("P(", crosshatch::ToString(reduce_op_), ")");
  }
  return "unknown";
}

absl::StatusOr<Placement> Placement::Parse(absl::string_view text) {
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat(
      "placement \"", text,
      "\" is none of R, S(dim), _S(dim,split_factor), P(sum|avg|product|min|"
      "max)"));
  if (text == "R") return Replicate();
  if (text == "P") return Partial();
  absl::string_view inner = text;
  if (!absl::ConsumeSuffix(&inner, ")")) return error;
  if (absl::ConsumePrefix(&inner, "P(")) {
    const std::optional<ReduceOp> op = ParseReduceOp(inner);
    return op.has_value() ? absl::StatusOr<Placement>(Partial(*op)) : error;
  }
  int dim = 0;
  if (absl::ConsumePrefix(&inner, "S(")) {
    return absl::SimpleAtoi(inner, &dim) ? absl::StatusOr<Placement>(Shard(dim))
                                         : error;
  }
  if (absl::ConsumePrefix(&inner, "_S(")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(inner, ',');
    int64_t factor = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &dim) &&
        absl::SimpleAtoi(parts[1], &factor) && factor >= 1) {
      return StridedShard(dim, factor);
    }
  }
  return error;
}

std::string ToString(absl::Span<const Placement> placements) {
  return absl::StrCat(
      "[",
      absl::StrJoin(placements, ",",
                    [](std::string* out, const Placement& placement) {
                      absl::StrAppend(out, placement.ToString());
                    }),
      "]");
}

absl::StatusOr<std::vector<Placement>> ParsePlacements(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&rest, "[") || !absl::ConsumeSuffix(&rest, "]")) {
    return absl::InvalidArgumentError(
        absl::StrCat("placements \"", text, "\" are not a list in []"));
  }
  std::vector<Placement> placements;
  // A comma inside parentheses is part of a strided shard.
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= rest.size(); ++i) {
    if (i < rest.size() && (rest[i] != ',' || depth > 0)) {
      depth += (rest[i] == '(') - (rest[i] == ')');
      continue;
    }
    const absl::string_view item =
        absl::StripAsciiWhitespace(rest.substr(begin, i - begin));
    begin = i + 1;
    if (item.empty() && i == rest.size() && placements.empty()) break;
    CH_ASSIGN_OR_RETURN(const Placement placement, Placement::Parse(item));
    placements.push_back(placement);
  }
  return placements;
}

}  // namespace crosshatch
