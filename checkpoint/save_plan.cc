// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/save_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/mesh_layout.h"

namespace crosshatch::checkpoint {
namespace {

/// A shard and the ranks that hold it.
struct Holders {
  PlannedCell cell;
  int64_t bytes = 0;
  std::vector<int> ranks;
};

/// The cuts between the shards of `tensor` along a dim, and for each interval
/// with elements its index among all intervals of the dim.
struct DimCuts {
  std::vector<int64_t> cuts = {0};
  std::vector<int> chunks;
};
std::vector<DimCuts> CutsOf(const TensorSpec& tensor) {
  std::vector<DimCuts> dims(tensor.sizes.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t size = tensor.sizes[d];
    const std::vector<Interval> intervals =
        tensor.layout.has_value()
            ? tensor.layout->DimIntervals(static_cast<int>(d), size)
            : std::vector<Interval>{{0, size}};
    for (size_t chunk = 0; chunk < intervals.size(); ++chunk) {
      if (intervals[chunk].size() == 0) continue;
      dims[d].cuts.push_back(intervals[chunk].end);
      dims[d].chunks.push_back(static_cast<int>(chunk));
    }
  }
  return dims;
}

/// Sets the coordinates along the axes that split `dim` to those of shard
/// `chunk`.
void PlaceAt(const Layout& layout, int dim, int chunk,
             MeshCoordinate& coordinate) {
  const absl::Span<const int> axes = layout.axes_of_dim(dim);
  for (size_t i = axes.size(); i-- > 0;) {
    const int size = layout.mesh().size(axes[i]);
    coordinate[static_cast<size_t>(axes[i])] = chunk % size;
    chunk /= size;
  }
}

std::vector<int> AxesThatReplicate(const Layout& layout) {
  std::vector<int> axes;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_replicate()) axes.push_back(axis);
  }
  return axes;
}

/// Returns the world ranks that hold each cell of `tensor`, in the order of
/// cells.
std::vector<std::vector<int>> HoldersOf(const TensorSpec& tensor,
                                        const std::vector<DimCuts>& dims,
                                        absl::Span<const int> world_ranks) {
  const std::vector<int> everyone(world_ranks.begin(), world_ranks.end());
  int64_t cells = 1;
  for (const DimCuts& dim : dims) {
    cells *= static_cast<int64_t>(dim.chunks.size());
  }
  std::vector<std::vector<int>> holders;
  const std::vector<int> replicas = tensor.layout.has_value()
                                        ? AxesThatReplicate(*tensor.layout)
                                        : std::vector<int>();
  for (int64_t cell = 0; cell < cells; ++cell) {
    if (!tensor.layout.has_value()) {
      holders.push_back(everyone);
      continue;
    }
    const Layout& layout = *tensor.layout;
    MeshCoordinate coordinate(static_cast<size_t>(layout.mesh().ndim()), 0);
    int64_t rest = cell;
    for (size_t d = dims.size(); d-- > 0;) {
      const auto along = static_cast<int64_t>(dims[d].chunks.size());
      PlaceAt(layout, static_cast<int>(d),
              dims[d].chunks[static_cast<size_t>(rest % along)], coordinate);
      rest /= along;
    }
    holders.push_back(replicas.empty()
                          ? std::vector<int>{layout.mesh().rank_at(coordinate)}
                          : layout.mesh().GroupRanks(replicas, coordinate));
  }
  return holders;
}

/// Returns the index of each world rank in `world_ranks`; -1 for others.
std::vector<int> IndicesOf(absl::Span<const int> world_ranks) {
  std::vector<int> indices;
  for (size_t i = 0; i < world_ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(world_ranks[i]);
    if (rank >= indices.size()) indices.resize(rank + 1, -1);
    indices[rank] = static_cast<int>(i);
  }
  return indices;
}

absl::Status Check(const TensorSpec& tensor, const std::vector<int>& indices,
                   size_t world_size) {
  if (!tensor.layout.has_value()) return absl::OkStatus();
  if (tensor.layout->is_partial()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", tensor.name, "\" is partial (", tensor.layout->ToString(),
        "): its ranks hold summands; redistribute it to shards or replicas "
        "before saving it"));
  }
  for (const int rank : tensor.layout->mesh().ranks()) {
    if (static_cast<size_t>(rank) < indices.size() &&
        indices[static_cast<size_t>(rank)] >= 0) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", tensor.name, "\" is on ", tensor.layout->mesh().ToString(),
        ", which has ranks that are not among the ", world_size,
        " ranks of the world"));
  }
  return absl::OkStatus();
}

/// Returns whether two ranks have the same value. NaNs are equal.
bool IsSame(const SmallValue& a, const SmallValue& b) {
  const auto* const x = std::get_if<double>(&a);
  const auto* const y = std::get_if<double>(&b);
  const bool both_nan =
      x != nullptr && y != nullptr && std::isnan(*x) && std::isnan(*y);
  return both_nan || a == b;
}

/// Assigns each cell to a rank.
void Balance(std::vector<Holders> shards, SavePlan& plan) {
  std::vector<int64_t> load(plan.by_rank.size(), 0);
  const auto is_bound = [](const Holders& h) { return h.ranks.size() == 1; };
  std::stable_sort(shards.begin(), shards.end(),
                   [&](const Holders& a, const Holders& b) {
                     return std::tuple(!is_bound(a), -a.bytes) <
                            std::tuple(!is_bound(b), -b.bytes);
                   });
  for (const Holders& shard : shards) {
    const int rank = *std::min_element(
        shard.ranks.begin(), shard.ranks.end(), [&](int a, int b) {
          return std::pair(load[static_cast<size_t>(a)], a) <
                 std::pair(load[static_cast<size_t>(b)], b);
        });
    load[static_cast<size_t>(rank)] += shard.bytes;
    plan.by_rank[static_cast<size_t>(rank)].push_back(shard.cell);
  }
}

/// Sorts the cells of each rank in the order of its file, and numbers the
/// files.
void MakeFiles(SavePlan& plan) {
  const auto writes = std::count_if(
      plan.by_rank.begin(), plan.by_rank.end(),
      [](const std::vector<PlannedCell>& cells) { return !cells.empty(); });
  for (std::vector<PlannedCell>& cells : plan.by_rank) {
    if (cells.empty()) continue;
    const auto key = [&](const PlannedCell& c) {
      return std::tuple(
          -SizeOf(plan.index.tensors[static_cast<size_t>(c.tensor)].dtype),
          c.tensor, c.cell);
    };
    std::sort(cells.begin(), cells.end(),
              [&](const PlannedCell& a, const PlannedCell& b) {
                return key(a) < key(b);
              });
    const auto file = static_cast<int>(plan.index.files.size());
    plan.index.files.push_back(DataFileName(file, static_cast<int>(writes)));
    for (const PlannedCell& c : cells) {
      plan.index.tensors[static_cast<size_t>(c.tensor)]
          .files[static_cast<size_t>(c.cell)] = file;
    }
  }
}

}  // namespace

int SavePlan::FileOf(int rank) const {
  const std::vector<PlannedCell>& cells = by_rank[static_cast<size_t>(rank)];
  if (cells.empty()) return -1;
  return index.tensors[static_cast<size_t>(cells[0].tensor)]
      .files[static_cast<size_t>(cells[0].cell)];
}

int64_t SavePlan::BytesOf(int rank) const {
  int64_t bytes = 0;
  for (const PlannedCell& c : by_rank[static_cast<size_t>(rank)]) {
    const IndexedTensor& tensor = index.tensors[static_cast<size_t>(c.tensor)];
    bytes += tensor.CellBox(c.cell).numel() * SizeOf(tensor.dtype);
  }
  return bytes;
}

std::vector<TensorInfo> SavePlan::InfosOf(int rank) const {
  std::vector<TensorInfo> infos;
  for (const PlannedCell& c : by_rank[static_cast<size_t>(rank)]) {
    const IndexedTensor& tensor = index.tensors[static_cast<size_t>(c.tensor)];
    infos.push_back(
        {tensor.CellName(c.cell), tensor.dtype, tensor.CellBox(c.cell).sizes});
  }
  return infos;
}

std::string SavePlan::ToString() const {
  std::string text;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    absl::StrAppend(&text, "rank ", rank, ": ", BytesOf(static_cast<int>(rank)),
                    " bytes:");
    for (const PlannedCell& c : by_rank[rank]) {
      absl::StrAppend(
          &text, " ",
          index.tensors[static_cast<size_t>(c.tensor)].CellName(c.cell));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  int world_size) {
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return PlanSave(tensors, ranks);
}

absl::StatusOr<SavePlan> PlanSave(absl::Span<const TensorSpec> tensors,
                                  absl::Span<const int> world_ranks) {
  const std::vector<int> indices = IndicesOf(world_ranks);
  std::vector<const TensorSpec*> sorted;
  for (const TensorSpec& tensor : tensors) {
    CH_RETURN_IF_ERROR(Check(tensor, indices, world_ranks.size()));
    sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorSpec* a, const TensorSpec* b) {
              return a->name < b->name;
            });
  SavePlan plan;
  plan.index.ranks = static_cast<int>(world_ranks.size());
  plan.by_rank.resize(world_ranks.size());
  std::vector<Holders> shards;
  for (const TensorSpec* tensor : sorted) {
    const auto number = static_cast<int>(plan.index.tensors.size());
    if (number > 0 && plan.index.tensors.back().name == tensor->name) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors are named \"", tensor->name, "\""));
    }
    IndexedTensor indexed;
    indexed.name = tensor->name;
    indexed.dtype = tensor->dtype;
    indexed.sizes = tensor->sizes;
    const std::vector<DimCuts> dims = CutsOf(*tensor);
    for (const DimCuts& dim : dims) indexed.cuts.push_back(dim.cuts);
    std::vector<std::vector<int>> holders =
        HoldersOf(*tensor, dims, world_ranks);
    for (std::vector<int>& ranks : holders) {
      for (int& rank : ranks) rank = indices[static_cast<size_t>(rank)];
    }
    indexed.files.resize(holders.size());
    for (size_t cell = 0; cell < holders.size(); ++cell) {
      const int64_t bytes = indexed.CellBox(static_cast<int>(cell)).numel() *
                            SizeOf(indexed.dtype);
      shards.push_back(
          {{number, static_cast<int>(cell)}, bytes, std::move(holders[cell])});
    }
    plan.index.tensors.push_back(std::move(indexed));
  }
  Balance(std::move(shards), plan);
  MakeFiles(plan);
  return plan;
}

absl::StatusOr<SavePlan> JoinPlans(absl::Span<const PlanPart> parts,
                                   int world_size) {
  SavePlan plan;
  plan.index.ranks = world_size;
  plan.by_rank.resize(static_cast<size_t>(world_size));
  std::map<std::string, std::pair<const IndexedTensor*, const PlanPart*>> all;
  for (const PlanPart& part : parts) {
    for (const IndexedTensor& tensor : part.index.tensors) {
      if (all.try_emplace(tensor.name, &tensor, &part).second) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", tensor.name,
          "\" is in the states of ranks whose other entries differ: keep it in "
          "one of them, or give it a different name in each"));
    }
    for (const auto& [name, value] : part.index.values) {
      const auto& [at, is_new] = plan.index.values.try_emplace(name, value);
      if (is_new || IsSame(at->second, value)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the value \"", name, "\" differs between ranks"));
    }
  }
  for (const auto& [name, found] : all) {
    if (plan.index.values.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\" is a tensor on some ranks and a value on others"));
    }
    const auto& [tensor, part] = found;
    const auto number = static_cast<int>(plan.index.tensors.size());
    plan.index.tensors.push_back(*tensor);
    for (int cell = 0; cell < tensor->num_cells(); ++cell) {
      const int writer = part->writers[static_cast<size_t>(
          tensor->files[static_cast<size_t>(cell)])];
      plan.by_rank[static_cast<size_t>(writer)].push_back({number, cell});
    }
  }
  MakeFiles(plan);
  return plan;
}

}  // namespace crosshatch::checkpoint
