// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/group_key.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace crosshatch {
namespace {

constexpr size_t kMostTerms = 8;

/// Formats the ranks without a leading word.
std::string RankList(absl::Span<const int> ranks) {
  if (ranks.size() <= kMostTerms) return absl::StrJoin(ranks, ", ");
  std::string text;
  size_t at = 0;
  for (size_t term = 0; at < ranks.size(); ++term) {
    if (term == kMostTerms) {
      absl::StrAppend(&text, " and ", ranks.size() - at, " more");
      break;
    }
    size_t end = at + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    absl::StrAppend(&text, term == 0 ? "" : ", ", ranks[at]);
    if (end - at > 1) absl::StrAppend(&text, "-", ranks[end - 1]);
    at = end;
  }
  return text;
}

}  // namespace

std::string DescribeRanks(absl::Span<const int> ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", RankList(ranks));
}

std::string Describe(const GroupKey& key) {
  return absl::StrCat("group '", key.name, "' (ranks ",
                      RankList(key.world_ranks), ")");
}

absl::StatusOr<int> MemberIndex(const GroupKey& key, int world_rank,
                                int world_size) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(key), " ", what));
  };
  std::vector<bool> is_member(world_size);
  int index = -1;
  for (size_t i = 0; i < key.world_ranks.size(); ++i) {
    const int rank = key.world_ranks[i];
    if (rank < 0 || rank >= world_size) {
      return error(
          absl::StrCat("names rank ", rank, " in a world of ", world_size));
    }
    if (is_member[rank])
      return error(absl::StrCat("has rank ", rank, " twice"));
    is_member[rank] = true;
    if (rank == world_rank) index = static_cast<int>(i);
  }
  if (index < 0) {
    return error(absl::StrCat("was requested by rank ", world_rank,
                              ", which is no member"));
  }
  return index;
}

}  // namespace crosshatch
