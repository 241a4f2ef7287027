// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/nccl/nccl_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/check.h"
#include "crosshatch/comm/segment_cursor.h"

namespace crosshatch::internal {
namespace {

/// The maximum number of messages to one peer. Beyond it, packing costs less.
constexpr size_t kMostRuns = 64;

/// Returns whether NCCL's reduction equals ours except for the order. NCCL
/// lacks some dtypes, and its maximum ignores NaN. It rounds to the dtype
/// before the sum is scaled. That may overflow float16, and rounds bfloat16
/// twice unless the scale is a power of two.
bool IsReducedAlike(const Collective& c) {
  if (c.dtype == DType::kBool || c.dtype == DType::kUInt16 ||
      IsStorageOnly(c.dtype)) {
    return false;
  }
  if (!IsFloatingPoint(c.dtype)) return true;
  if (c.reduce_op == ReduceOp::kMin || c.reduce_op == ReduceOp::kMax) {
    return false;
  }
  if (SizeOf(c.dtype) > 2) return true;
  int exponent = 0;
  const bool is_exact =
      c.dtype == DType::kBFloat16 && std::frexp(c.scale, &exponent) == 0.5;
  return (c.scale == 1.0 || is_exact) && c.reduce_op != ReduceOp::kAvg;
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

/// A contiguous run of memory.
struct Run {
  const std::byte* data = nullptr;
  int64_t elems = 0;
};

/// Returns the runs of `list`, or nothing if there are too many.
std::optional<std::vector<Run>> RunsOf(const SegmentList& list,
                                       int64_t elem_bytes) {
  std::vector<Run> runs;
  SegmentCursor cursor(list, elem_bytes);
  while (cursor.contiguous() > 0) {
    if (runs.size() == kMostRuns) return std::nullopt;
    runs.push_back({cursor.data(), cursor.contiguous()});
    cursor.Advance(cursor.contiguous());
  }
  return runs;
}

/// Returns the contiguous run that `lists` form in order, if all have equal
/// sizes; otherwise a run of 0 elements.
Run JoinedRun(absl::Span<const std::vector<Run>> lists, int64_t elem_bytes) {
  Run all;
  int64_t first_elems = 0;
  for (const std::vector<Run>& list : lists) {
    int64_t elems = 0;
    for (const Run& run : list) {
      if (all.data == nullptr) all.data = run.data;
      if (run.data != all.data + all.elems * elem_bytes) return {};
      all.elems += run.elems;
      elems += run.elems;
    }
    if (&list == lists.data()) first_elems = elems;
    if (elems != first_elems) return {};
  }
  return all;
}

/// Returns the strips of lists whose runs ascend in memory.
std::vector<NcclStrip> StripsOf(absl::Span<const std::vector<Run>> lists,
                                int64_t elem_bytes) {
  std::vector<NcclStrip> strips;
  std::vector<int> at(lists.size(), 0);
  for (const Run& first : lists[0]) {
    bool are_consecutive = true;
    for (size_t r = 0; r < lists.size(); ++r) {
      const std::vector<Run>& list = lists[r];
      const auto count = static_cast<int>(list.size());
      while (at[r] < count && list[at[r]].data < first.data) ++at[r];
      are_consecutive &=
          at[r] < count && list[at[r]].elems == first.elems &&
          list[at[r]].data ==
              first.data + static_cast<int64_t>(r) * first.elems * elem_bytes;
    }
    if (are_consecutive) strips.push_back({first.elems, at});
  }
  return strips;
}

/// Appends the next `elems` elements at `cursor` to `list`.
void Take(SegmentCursor& cursor, int64_t elems, SegmentList& list) {
  while (elems > 0) {
    const int64_t run = std::min(elems, cursor.contiguous());
    CH_CHECK_GT(run, 0) << "a list of segments ends too early";
    list.push_back({.data = cursor.data(), .run_elems = run});
    cursor.Advance(run);
    elems -= run;
  }
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

NcclWay ChooseNcclWay(const Collective& c, const NcclCuts& cuts, int size,
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
    for (const NcclStrip& strip : cuts.strips) elems += size * strip.elems;
  }
  return elems > 0 && elems * SizeOf(c.dtype) >= options.least_collective_bytes
             ? NcclWay::kCollective
             : NcclWay::kSendAndReceive;
}

NcclCuts CutsOf(const Collective& c) {
  const absl::Span<const SegmentList> lists = SharedLists(c);
  if (lists.empty()) return {};
  const int64_t elem_bytes = SizeOf(c.dtype);
  std::vector<std::vector<Run>> runs;
  for (const SegmentList& list : lists) {
    std::optional<std::vector<Run>> of_list = RunsOf(list, elem_bytes);
    if (!of_list.has_value()) return {};
    runs.push_back(*std::move(of_list));
  }
  NcclCuts cuts;
  if (const Run all = JoinedRun(runs, elem_bytes); all.elems > 0) {
    const int64_t elems = all.elems / static_cast<int64_t>(lists.size());
    cuts.runs.assign(lists.size(), {elems});
    cuts.strips = {{elems, std::vector<int>(lists.size(), 0)}};
  } else {
    for (const std::vector<Run>& list : runs) {
      std::vector<int64_t>& elems = cuts.runs.emplace_back();
      for (const Run& run : list) elems.push_back(run.elems);
    }
    cuts.strips = StripsOf(runs, elem_bytes);
  }
  uint64_t hash = Mixed(1, lists.size());
  for (const std::vector<int64_t>& list : cuts.runs) {
    for (const int64_t elems : list) {
      hash = Mixed(hash, static_cast<uint64_t>(elems));
    }
    hash = Mixed(hash, 0);
  }
  for (const NcclStrip& strip : cuts.strips) {
    for (const int run : strip.runs) {
      hash = Mixed(hash, static_cast<uint64_t>(run));
    }
  }
  cuts.hash = hash == 0 ? 1 : hash;
  return cuts;
}

NcclParts SplitOffStrips(const Collective& c, const NcclCuts& cuts, int me) {
  const bool gathers = c.kind == CollectiveKind::kAllGather;
  const absl::Span<const SegmentList> lists = SharedLists(c);
  const int64_t elem_bytes = SizeOf(c.dtype);
  NcclParts split;
  split.parts.resize(cuts.strips.size());
  split.rest = {.kind = c.kind,
                .dtype = c.dtype,
                .reduce_op = c.reduce_op,
                .scale = c.scale};
  // Divides `list`, which has the runs of member r.
  const auto divide = [&](const SegmentList& list, size_t r, const auto& take) {
    SegmentList rest;
    SegmentCursor cursor(list, elem_bytes);
    size_t strip = 0;
    for (size_t run = 0; run < cuts.runs[r].size(); ++run) {
      const int64_t elems = cuts.runs[r][run];
      if (strip < cuts.strips.size() &&
          cuts.strips[strip].runs[r] == static_cast<int>(run)) {
        take(split.parts[strip++], cursor, elems);
      } else {
        Take(cursor, elems, rest);
        split.has_rest = true;
      }
    }
    return rest;
  };
  std::vector<SegmentList> shared;
  for (size_t r = 0; r < lists.size(); ++r) {
    shared.push_back(divide(
        lists[r], r,
        [r](NcclParts::Part& part, SegmentCursor& cursor, int64_t elems) {
          if (r == 0) part.all = cursor.data();
          cursor.Skip(elems);
        }));
    std::vector<int64_t>& runs = split.rest_cuts.runs.emplace_back();
    for (const Segment& segment : shared.back()) {
      runs.push_back(segment.run_elems);
    }
  }
  std::vector<SegmentList> mine = {
      divide(gathers ? c.send[0] : c.recv[0], static_cast<size_t>(me),
             [](NcclParts::Part& part, SegmentCursor& cursor, int64_t elems) {
               part.elems = elems;
               Take(cursor, elems, part.mine);
             })};
  split.rest.send = gathers ? std::move(mine) : std::move(shared);
  split.rest.recv = gathers ? std::move(shared) : std::move(mine);
  return split;
}

int64_t SummandBytes(const Collective& c, int size, int me,
                     const NcclOptions& options) {
  if (size == 1 || !IsReduction(c.kind)) return 0;
  const NcclCuts cuts = HasAddresses(c) ? CutsOf(c) : NcclCuts{};
  int64_t elems = NumElements(c.recv[0]);
  if (c.kind == CollectiveKind::kAllReduce) {
    elems = PieceBegin(elems, size, me + 1) - PieceBegin(elems, size, me);
  }
  if (ChooseNcclWay(c, cuts, size, options) == NcclWay::kCollective) {
    elems = c.kind == CollectiveKind::kAllReduce
                ? 0
                : NumElements(SplitOffStrips(c, cuts, me).rest.recv[0]);
  }
  return elems * (size - 1) * SizeOf(c.dtype);
}

}  // namespace crosshatch::internal
