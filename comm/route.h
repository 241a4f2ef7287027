// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_ROUTE_H_
#define CROSSHATCH_COMM_ROUTE_H_

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

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_ROUTE_H_
