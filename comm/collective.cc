// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/collective.h"

#include "crosshatch/comm/route.h"

namespace crosshatch {

int64_t NumElements(absl::Span<const Segment> segments) {
  int64_t count = 0;
  for (const Segment& segment : segments) count += segment.elems();
  return count;
}

const char* Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllReduce;
}

int64_t BytesReceived(const Collective& c, int me, int n) {
  int64_t elems = 0;
  if (c.kind == CollectiveKind::kAllReduce) {
    const int64_t count = NumElements(c.recv[0]);
    const int64_t piece =
        PieceBegin(count, n, me + 1) - PieceBegin(count, n, me);
    elems = (n - 1) * piece + count - piece;
  } else if (c.kind == CollectiveKind::kReduceScatter) {
    elems = (n - 1) * NumElements(c.recv[0]);
  } else {
    for (int r = 0; r < n; ++r) {
      const Route route = RouteOf(c.kind, c.root, r, me);
      if (r != me && route.exists()) elems += NumElements(c.recv[route.recv]);
    }
  }
  return elems * SizeOf(c.dtype);
}

}  // namespace crosshatch
