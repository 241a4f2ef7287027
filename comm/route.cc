// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/route.h"

namespace crosshatch {
namespace {

Part Whole(const std::vector<SegmentList>& lists, int index) {
  // A root may have no recv list.
  if (index < 0 || lists.empty()) return {};
  const SegmentList& list = lists[static_cast<size_t>(index)];
  return {list, 0, NumElements(list)};
}

/// Returns piece `index` of the `n` pieces of a list.
Part Piece(const Part& whole, int n, int index) {
  const int64_t begin = PieceBegin(whole.elems, n, index);
  return {whole.list, begin, PieceBegin(whole.elems, n, index + 1) - begin};
}

}  // namespace

void PlanParts(const Collective& c, int me, bool in_pieces,
               absl::Span<Part> sends, absl::Span<Part> receives) {
  const auto n = static_cast<int>(sends.size());
  const bool cuts = in_pieces && c.kind == CollectiveKind::kAllReduce;
  for (int r = 0; r < n; ++r) {
    sends[r] = Whole(c.send, RouteOf(c.kind, c.root, me, r).send);
    receives[r] = Whole(c.recv, RouteOf(c.kind, c.root, r, me).recv);
    if (!cuts) continue;
    sends[r] = Piece(sends[r], n, r);
    receives[r] = Piece(receives[r], n, me);
  }
}

void PlanGatherOfPieces(const Collective& c, int me, absl::Span<Part> sends,
                        absl::Span<Part> receives) {
  const auto n = static_cast<int>(sends.size());
  const Part whole = Whole(c.recv, 0);
  for (int r = 0; r < n; ++r) {
    sends[r] = Piece(whole, n, me);
    receives[r] = Piece(whole, n, r);
  }
}

}  // namespace crosshatch
