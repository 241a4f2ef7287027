// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_ROUTE_H_
#define CROSSHATCH_COMM_ROUTE_H_

/// \file
/// Which data each member of a group sends to each other one.

#include <cstdint>

#include "absl/types/span.h"
#include "crosshatch/comm/collective.h"

namespace crosshatch {

/// What one member of a group sends to another in a collective.
struct Route {
  /// Indices of the sender's send list and of the receiver's recv list; -1 if
  /// nothing is sent.
  int send = -1;
  int recv = -1;

  bool exists() const { return send >= 0; }
};

/// Returns the lists that member `to` takes from member `from`, which may be
/// the same. In a reduction they are summands; each member of an all-reduce may
/// take a piece of them alone.
constexpr Route RouteOf(CollectiveKind kind, int root, int from, int to) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return {0, from};
    case CollectiveKind::kReduceScatter:
      return {to, 0};
    case CollectiveKind::kAllReduce:
      return {0, 0};
    case CollectiveKind::kAllToAll:
      return {to, from};
    case CollectiveKind::kBroadcast:
      return from == root ? Route{0, 0} : Route{};
    case CollectiveKind::kBarrier:
      break;
  }
  return {};
}

/// Elements [begin, begin + elems) of a list, sent to or received from one
/// member.
struct Part {
  absl::Span<const Segment> list;
  int64_t begin = 0;
  int64_t elems = 0;
};

/// Sets, by member, what member `me` sends and receives, itself included. In a
/// reduction each member's sends are summands, and all receives are the result.
/// \param in_pieces an all-reduce is two steps: each member reduces its piece
///     (PieceBegin), and the members gather the pieces (PlanGatherOfPieces). If
///     not, each member reduces all.
/// \param sends, receives one part for each member of the group.
void PlanParts(const Collective& collective, int me, bool in_pieces,
               absl::Span<Part> sends, absl::Span<Part> receives);

/// Sets them for the second step of an all-reduce.
void PlanGatherOfPieces(const Collective& collective, int me,
                        absl::Span<Part> sends, absl::Span<Part> receives);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_ROUTE_H_
