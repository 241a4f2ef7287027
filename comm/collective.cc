// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/collective.h"

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
  switch (c.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      for (int r = 0; r < n; ++r) {
        if (r != me) elems += NumElements(c.recv[r]);
      }
      break;
    case CollectiveKind::kReduceScatter:
      elems = (n - 1) * NumElements(c.recv[0]);
      break;
    case CollectiveKind::kAllReduce: {
      const int64_t count = NumElements(c.recv[0]);
      const int64_t piece =
          PieceBegin(count, n, me + 1) - PieceBegin(count, n, me);
      elems = (n - 1) * piece + count - piece;
      break;
    }
    case CollectiveKind::kBroadcast:
      if (me != c.root) elems = NumElements(c.recv[0]);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  return elems * SizeOf(c.dtype);
}

}  // namespace crosshatch
