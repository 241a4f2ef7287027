// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/group_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch::fsdp {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Returns the elements per index of the sharded dim.
int64_t InnerElems(const PlannedParameter& p) {
  const auto dim = static_cast<size_t>(p.shard_dim);
  return NumElements(ShapeView(p.full_shape).subspan(dim + 1));
}

int64_t OuterElems(const PlannedParameter& p) {
  return NumElements(
      ShapeView(p.full_shape).subspan(0, static_cast<size_t>(p.shard_dim)));
}

}  // namespace

GroupPlan::GroupPlan(std::vector<PlannedParameter> parameters, int num_shards)
    : parameters_(std::move(parameters)),
      num_shards_(num_shards),
      shard_elems_(static_cast<size_t>(num_shards), 0) {
  for (const PlannedParameter& p : parameters_) {
    CH_CHECK_EQ(static_cast<int>(p.intervals.size()), num_shards_) << p.name;
    CH_CHECK_LT(p.shard_dim, static_cast<int>(p.full_shape.size())) << p.name;
    full_offsets_.push_back(full_elems_);
    full_elems_ += RoundUp(NumElements(p.full_shape), kFullAlignment);
    std::vector<int64_t>& offsets = shard_offsets_.emplace_back();
    const int64_t elems_per_index = OuterElems(p) * InnerElems(p);
    for (size_t rank = 0; rank < shard_elems_.size(); ++rank) {
      offsets.push_back(shard_elems_[rank]);
      shard_elems_[rank] += p.intervals[rank].size() * elems_per_index;
    }
  }
}

int64_t GroupPlan::shard_offset(int i, int rank) const {
  return shard_offsets_[static_cast<size_t>(i)][static_cast<size_t>(rank)];
}

Shape GroupPlan::ShardShape(int i, int rank) const {
  const PlannedParameter& p = parameter(i);
  Shape shape = p.full_shape;
  shape[static_cast<size_t>(p.shard_dim)] =
      p.intervals[static_cast<size_t>(rank)].size();
  return shape;
}

SegmentList GroupPlan::FullSegments(void* full, DType dtype, int rank) const {
  auto* const base = static_cast<std::byte*>(full);
  SegmentList segments;
  for (int i = 0; i < num_parameters(); ++i) {
    const PlannedParameter& p = parameter(i);
    const Interval piece = p.intervals[static_cast<size_t>(rank)];
    const int64_t inner = InnerElems(p);
    Segment segment{
        .data = nullptr,
        .run_elems = piece.size() * inner,
        .runs = OuterElems(p),
        .stride_elems = p.full_shape[static_cast<size_t>(p.shard_dim)] * inner};
    if (segment.elems() == 0) continue;
    // In a dry run there is no memory and the pointer stays null.
    if (base != nullptr) {
      segment.data =
          base + (full_offset(i) + piece.begin * inner) * SizeOf(dtype);
    }
    segments.push_back(segment);
  }
  return segments;
}

SegmentList GroupPlan::ShardSegments(void* shard, int rank) const {
  if (shard_elems(rank) == 0) return {};
  return {Segment{.data = shard, .run_elems = shard_elems(rank)}};
}

std::string GroupPlan::ToString(int i, PlanDetail detail) const {
  const PlannedParameter& p = parameter(i);
  std::string text =
      absl::StrCat("  ", p.name, " ", crosshatch::ToString(p.full_shape),
                   " dim ", p.shard_dim, ":");
  constexpr size_t kMaxPrinted = 8;
  if (detail == PlanDetail::kEveryRank || p.intervals.size() <= kMaxPrinted) {
    for (const Interval& piece : p.intervals) {
      absl::StrAppend(&text, " ", piece.begin, ":", piece.end);
    }
    return text;
  }
  const char* before = " ";
  for (auto at = p.intervals.begin(); at != p.intervals.end();) {
    const auto end = std::find_if(
        at, p.intervals.end(),
        [&](const Interval& piece) { return piece.size() != at->size(); });
    absl::StrAppend(&text, std::exchange(before, ", "), end - at, " x ",
                    at->size());
    at = end;
  }
  return text;
}

std::string GroupPlan::ToString(PlanDetail detail) const {
  std::string text;
  for (int i = 0; i < num_parameters(); ++i) {
    absl::StrAppend(&text, ToString(i, detail), "\n");
  }
  return text;
}

}  // namespace crosshatch::fsdp
