// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_GROUP_KEY_H_
#define CROSSHATCH_COMM_GROUP_KEY_H_

/// \file
/// The key of a communicator: equal keys of World::Group give the same one.

#include <compare>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace crosshatch {

struct GroupKey {
  /// E.g. "tp".
  std::string name;
  /// The world rank of each member, by its index in the group.
  std::vector<int> world_ranks;
  std::string stream_name;

  int size() const { return static_cast<int>(world_ranks.size()); }

  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

/// Returns text about ranks, for messages: "rank 3", "ranks 0, 2". More than
/// eight ranks are given as ranges, "ranks 1-2999", at most eight of them.
std::string DescribeRanks(absl::Span<const int> ranks);

/// Returns "group 'tp' (ranks 0, 2)", for messages.
std::string Describe(const GroupKey& key);

/// Returns the index of `world_rank` among the members.
/// \error kInvalidArgument unless the members are ranks of a world of
///     `world_size`, no rank is there twice, and `world_rank` is among them.
absl::StatusOr<int> MemberIndex(const GroupKey& key, int world_rank,
                                int world_size);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_GROUP_KEY_H_
