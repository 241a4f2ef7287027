// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/nccl_plan.h"

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/comm/segment_cursor.h"

namespace crosshatch::internal {
namespace {

/// The maximum number of messages to one peer. Beyond it, packing costs less.
constexpr size_t kMostRuns = 64;

/// Returns whether NCCL's reduction equals ours except for the order. NCCL
/// lacks some dtypes, and its maximum ignores NaN. It rounds to the dtype
/// before the sum is scaled, which may overflow 16 bits.
bool IsReducedAlike(const Collective& c) {
  if (c.dtype == DType::kBool || c.dtype == DType::kUInt16) return false;
  if (!IsFloatingPoint(c.dtype)) return true;
  if (c.reduce_op == ReduceOp::kMin || c.reduce_op == ReduceOp::kMax) {
    return false;
  }
  return SizeOf(c.dtype) > 2 ||
         (c.scale == 1.0 && c.reduce_op != ReduceOp::kAvg);
}

uint64_t Mixed(uint64_t hash, uint64_t value) {
  return HashBytes(hash, &value, sizeof(value));
}

/// Returns the lists that all members split alike, or none.
absl::Span<const SegmentList> SharedLists(const Collective& c) {
  if (c.kind == CollectiveKind::kAllGather) return c.recv;
  if (c.kind == CollectiveKind::kReduceScatter) return c.send;
  return {};
}

bool AreEven(absl::Span<const SegmentList> lists) {
  return std::all_of(lists.begin(), lists.end(), [&](const SegmentList& list) {
    return NumElements(list) == NumElements(lists[0]);
  });
}

/// Returns whether lists have addresses; those of a dry run do not.
bool HasAddresses(const Collective& c) {
  return std::all_of(c.send.begin(), c.send.end(), [](const auto& list) {
    return std::all_of(list.begin(), list.end(), [](const Segment& segment) {
      return segment.data != nullptr;
    });
  });
}

}  // namespace

NcclWay ChooseNcclWay(const Collective& c, int size, bool is_consecutive,
                      const NcclOptions& options) {
  // NCCL broadcasts by a tree.
  if (c.kind == CollectiveKind::kBroadcast) return NcclWay::kCollective;
  if (c.kind == CollectiveKind::kAllToAll) return NcclWay::kSendAndReceive;
  if (c.kind == CollectiveKind::kBarrier) return NcclWay::kCollective;
  const bool reduces = IsReduction(c.kind);
  if (reduces && (options.deterministic || !IsReducedAlike(c))) {
    return NcclWay::kSendAndReceive;
  }
  int64_t elems = 0;
  if (c.kind == CollectiveKind::kAllReduce) {
    elems = NumElements(c.recv[0]);
  } else {
    const absl::Span<const SegmentList> lists = SharedLists(c);
    if (!is_consecutive || !AreEven(lists)) return NcclWay::kSendAndReceive;
    elems = size * NumElements(lists[0]);
  }
  return elems > 0 && elems * SizeOf(c.dtype) >= options.least_collective_bytes
             ? NcclWay::kCollective
             : NcclWay::kSendAndReceive;
}

NcclCuts CutsOf(const Collective& c) {
  NcclCuts cuts;
  const absl::Span<const SegmentList> lists = SharedLists(c);
  const int64_t elem_bytes = SizeOf(c.dtype);
  uint64_t hash = Mixed(1, lists.size());
  const std::byte* next = nullptr;
  cuts.is_consecutive = AreEven(lists);
  for (const SegmentList& list : lists) {
    std::vector<int64_t>& runs = cuts.runs.emplace_back();
    SegmentCursor cursor(list, elem_bytes);
    while (cursor.contiguous() > 0) {
      if (runs.size() == kMostRuns) return {};
      const int64_t run = cursor.contiguous();
      cuts.is_consecutive &= next == nullptr || next == cursor.data();
      next = cursor.data() + run * elem_bytes;
      runs.push_back(run);
      hash = Mixed(hash, static_cast<uint64_t>(run));
      cursor.Advance(run);
    }
    hash = Mixed(hash, 0);
  }
  if (lists.empty()) return {};
  hash = Mixed(hash, cuts.is_consecutive ? 1 : 2);
  cuts.hash = hash == 0 ? 1 : hash;
  return cuts;
}

int64_t SummandBytes(const Collective& c, int size, int me,
                     const NcclOptions& options) {
  if (size == 1 || !IsReduction(c.kind)) return 0;
  const bool is_consecutive = HasAddresses(c) && CutsOf(c).is_consecutive;
  if (ChooseNcclWay(c, size, is_consecutive, options) == NcclWay::kCollective) {
    return 0;
  }
  int64_t elems = NumElements(c.recv[0]);
  if (c.kind == CollectiveKind::kAllReduce) {
    elems = PieceBegin(elems, size, me + 1) - PieceBegin(elems, size, me);
  }
  return elems * (size - 1) * SizeOf(c.dtype);
}

}  // namespace crosshatch::internal
