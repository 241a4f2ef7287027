// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/group_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch::fsdp {
namespace {

// Returns the elements per index of the sharded dim.
int64_t InnerElems(const PlannedParameter& p) {
  const auto dim = static_cast<size_t>(p.shard_dim);
  return NumElements(ShapeView(p.full_shape).subspan(dim + 1));
}

int64_t OuterElems(const PlannedParameter& p) {
  return NumElements(
      ShapeView(p.full_shape).subspan(0, static_cast<size_t>(p.shard_dim)));
}

// Returns where the shard of `rank` begins in the full parameter.
int64_t ShardBegin(const PlannedParameter& p, int rank) {
  return p.intervals[static_cast<size_t>(rank)].begin * InnerElems(p);
}

// Returns the address of a byte of a buffer. A dry run has no memory, but its
// addresses show which segments are adjacent.
std::byte* At(void* buffer, int64_t byte) {
  constexpr uintptr_t kDryRun = 64;
  const auto begin =
      buffer == nullptr ? kDryRun : reinterpret_cast<uintptr_t>(buffer);
  return reinterpret_cast<std::byte*>(begin + static_cast<uintptr_t>(byte));
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

GroupPlan GroupPlan::Ragged(std::vector<PlannedParameter> parameters,
                            int num_shards, std::vector<int64_t> offsets,
                            int64_t slot_elems) {
  GroupPlan plan(std::move(parameters), num_shards);
  plan.SetPieces(std::move(offsets), slot_elems);
  return plan;
}

void GroupPlan::SetPieces(std::vector<int64_t> offsets, int64_t slot_elems) {
  CH_CHECK_EQ(offsets.size(), parameters_.size());
  full_offsets_ = std::move(offsets);
  slot_elems_ = slot_elems;
  int64_t end = 0;
  std::vector<Interval> gaps;
  for (int i = 0; i < num_parameters(); ++i) {
    CH_CHECK_EQ(parameter(i).shard_dim, 0) << parameter(i).name;
    if (full_offset(i) > end) gaps.push_back({end, full_offset(i)});
    end = full_offset(i) + NumElements(parameter(i).full_shape);
  }
  if (slot_elems != 0) {
    full_elems_ = num_shards_ * slot_elems;
    if (full_elems_ > end) gaps.push_back({end, full_elems_});
    for (int rank = 0; rank <= num_shards_; ++rank) {
      piece_begins_.push_back(rank * slot_elems);
    }
  } else {
    full_elems_ = RoundUp(end, kFullAlignment);
    piece_begins_.assign(static_cast<size_t>(num_shards_) + 1, end);
    piece_begins_[0] = 0;
    for (int rank = num_shards_ - 1; rank > 0; --rank) {
      int64_t& begin = piece_begins_[static_cast<size_t>(rank)];
      begin = piece_begins_[static_cast<size_t>(rank) + 1];
      for (int i = num_parameters() - 1; i >= 0; --i) {
        if (NumElements(ShardShape(i, rank)) == 0) continue;
        begin = full_offset(i) + ShardBegin(parameter(i), rank);
      }
    }
  }
  moved_gaps_ = std::move(gaps);
  for (int rank = 0; rank < num_shards_; ++rank) {
    const auto r = static_cast<size_t>(rank);
    shard_elems_[r] = piece_begins_[r + 1] - piece_begins_[r];
    for (int i = 0; i < num_parameters(); ++i) {
      const int64_t offset =
          full_offset(i) + ShardBegin(parameter(i), rank) - piece_begins_[r];
      const int64_t elems = NumElements(ShardShape(i, rank));
      CH_CHECK(elems == 0 || (offset >= 0 && offset + elems <= shard_elems_[r]))
          << parameter(i).name << " on shard rank " << rank;
      // An empty shard is anywhere within the piece.
      shard_offsets_[static_cast<size_t>(i)][r] =
          std::clamp<int64_t>(offset, 0, shard_elems_[r]);
    }
  }
}

GroupPlan GroupPlan::Coarser(int num_shards) const {
  const auto joined = static_cast<size_t>(num_shards_ / num_shards);
  std::vector<PlannedParameter> parameters;
  for (const PlannedParameter& fine : parameters_) {
    PlannedParameter& p = parameters.emplace_back(fine);
    p.intervals.clear();
    for (size_t r = 0; r < fine.intervals.size(); ++r) {
      if (r % joined == 0) p.intervals.push_back({fine.intervals[r].begin, 0});
      p.intervals.back().end =
          std::max(p.intervals.back().begin, fine.intervals[r].end);
    }
  }
  if (piece_begins_.empty())
    return GroupPlan(std::move(parameters), num_shards);
  return Ragged(std::move(parameters), num_shards, full_offsets_,
                slot_elems_ * static_cast<int64_t>(joined));
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
  if (!piece_begins_.empty()) {
    if (shard_elems(rank) == 0) return {};
    const int64_t begin = piece_begins_[static_cast<size_t>(rank)];
    return {Segment{.data = At(full, begin * SizeOf(dtype)),
                    .run_elems = shard_elems(rank)}};
  }
  SegmentList segments;
  for (int i = 0; i < num_parameters(); ++i) {
    const PlannedParameter& p = parameter(i);
    const Interval piece = p.intervals[static_cast<size_t>(rank)];
    const int64_t inner = InnerElems(p);
    const Segment segment{
        .data =
            At(full, (full_offset(i) + ShardBegin(p, rank)) * SizeOf(dtype)),
        .run_elems = piece.size() * inner,
        .runs = OuterElems(p),
        .stride_elems = p.full_shape[static_cast<size_t>(p.shard_dim)] * inner};
    if (segment.elems() > 0) segments.push_back(segment);
  }
  return segments;
}

SegmentList GroupPlan::ShardSegments(void* shard, int rank) const {
  if (shard_elems(rank) == 0) return {};
  return {Segment{.data = At(shard, 0), .run_elems = shard_elems(rank)}};
}

std::string GroupPlan::DescribePieces() const {
  if (piece_begins_.empty()) return "";
  const auto [least, most] =
      std::minmax_element(shard_elems_.begin(), shard_elems_.end());
  return absl::StrCat("ragged: ", num_shards_, " pieces of ", *least,
                      *least == *most ? "" : absl::StrCat(" to ", *most),
                      " elements");
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
