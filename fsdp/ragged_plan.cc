// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/ragged_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace crosshatch::fsdp {
namespace {

int64_t BlockElems(const RaggedParameter& p) {
  return std::min(p.rows_per_block, p.rows) * p.row_elems;
}

// Returns whether slots of `slot` elements divide `p` between blocks if it
// starts at `offset`.
bool FitsAt(const RaggedParameter& p, int64_t offset, int64_t slot) {
  const int64_t first = (offset / slot + 1) * slot;
  const int64_t end = offset + p.elems();
  if (end <= first) return true;
  const int64_t block = BlockElems(p);
  return (first - offset) % block == 0 &&
         (end <= first + slot || slot % block == 0);
}

// Returns the first aligned offset from `begin` on at which `p` fits, or
// nullopt if there is none within the next two slots.
std::optional<int64_t> Place(const RaggedParameter& p, int64_t begin,
                             int64_t slot) {
  const int64_t block = BlockElems(p);
  // A boundary is a whole number of blocks after the parameter's start. All
  // offsets that are aligned and have the right remainder repeat after `step`.
  const int64_t step = std::lcm(block, kFullAlignment);
  const int64_t next = RoundUp(begin, slot);
  for (const int64_t boundary : {next, next + slot}) {
    const int64_t from =
        std::max(RoundUp(begin, kFullAlignment), boundary - slot);
    if (FitsAt(p, from, slot)) return from;
    const int64_t behind = boundary - (boundary - from) / step * step;
    if (behind < boundary && FitsAt(p, behind, slot)) return behind;
  }
  return std::nullopt;
}

// Returns the offsets with equal slots of `slot` elements, a multiple of the
// alignment, or nullopt if they do not suffice.
std::optional<std::vector<int64_t>> OffsetsInSlots(
    absl::Span<const RaggedParameter> parameters, int ranks, int64_t slot) {
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const RaggedParameter& p : parameters) {
    if (p.elems() == 0) {
      offsets.push_back(RoundUp(end, kFullAlignment));
      continue;
    }
    const std::optional<int64_t> offset = Place(p, end, slot);
    if (!offset.has_value()) return std::nullopt;
    offsets.push_back(*offset);
    end = *offset + p.elems();
    if (end > ranks * slot) return std::nullopt;
  }
  return offsets;
}

// Sets equal slots with the least slack, if there are any.
void PlanSlots(absl::Span<const RaggedParameter> parameters, int ranks,
               RaggedPlan& plan) {
  int64_t elems = 0;
  for (const RaggedParameter& p : parameters) elems += p.elems();
  const int64_t least = (elems + ranks - 1) / ranks;
  const auto most =
      least + static_cast<int64_t>(static_cast<double>(least) * kMaxSlotSlack);
  // A parameter with two boundaries inside needs slots of whole blocks.
  int64_t step = kFullAlignment;
  for (const RaggedParameter& p : parameters) {
    if (p.elems() > 2 * most) step = std::lcm(step, BlockElems(p));
    if (step > most) return;
  }
  for (int64_t slot = RoundUp(least, step); slot > 0 && slot <= most;
       slot += step) {
    auto offsets = OffsetsInSlots(parameters, ranks, slot);
    if (!offsets.has_value()) continue;
    plan.slot_elems = slot;
    plan.offsets = *std::move(offsets);
    return;
  }
}

// Returns the end of a block, or a parameter's start, that is nearest to `at`.
int64_t NearestCut(absl::Span<const RaggedParameter> parameters,
                   absl::Span<const int64_t> offsets, int64_t at) {
  int64_t nearest = 0;
  const auto consider = [&](int64_t cut) {
    if (std::abs(cut - at) < std::abs(nearest - at)) nearest = cut;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const RaggedParameter& p = parameters[i];
    if (p.elems() == 0) continue;
    const int64_t block = BlockElems(p);
    const int64_t blocks =
        std::clamp<int64_t>((at - offsets[i]) / block, 0, p.elems() / block);
    consider(offsets[i] + blocks * block);
    consider(offsets[i] + std::min((blocks + 1) * block, p.elems()));
  }
  return nearest;
}

}  // namespace

RaggedPlan PlanRaggedShards(absl::Span<const RaggedParameter> parameters,
                            int ranks) {
  RaggedPlan plan;
  PlanSlots(parameters, ranks, plan);
  int64_t end = 0;
  if (plan.slot_elems == 0) {
    for (const RaggedParameter& p : parameters) {
      plan.offsets.push_back(end);
      end = RoundUp(end + p.elems(), kFullAlignment);
    }
  }
  plan.cuts.resize(parameters.size());
  for (int rank = 1; rank < ranks; ++rank) {
    const int64_t begin =
        plan.slot_elems != 0
            ? rank * plan.slot_elems
            : NearestCut(parameters, plan.offsets, end * rank / ranks);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const RaggedParameter& p = parameters[i];
      const int64_t within =
          std::clamp<int64_t>(begin - plan.offsets[i], 0, p.elems());
      plan.cuts[i].push_back(p.row_elems == 0 ? 0 : within / p.row_elems);
    }
  }
  return plan;
}

}  // namespace crosshatch::fsdp
