// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/visualize_sharding.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/box.h"

namespace crosshatch {
namespace {

// Blocks by offset, in row-major order, and the text of their ranks.
struct Blocks {
  std::map<std::vector<int64_t>, std::pair<Box, std::string>> by_offset;
  std::vector<int> empty_ranks;
};

// Returns the ranks of one block, as indices into the mesh's ranks. Ranks that
// replicate each other are separated by commas; ranks with a pending reduction
// are joined by it.
std::string HoldersText(const Layout& layout, const std::vector<int>& holders) {
  const MeshLayout& mesh = layout.mesh();
  // By index along the replicating axes.
  std::map<std::vector<int>, std::vector<int>> replicas;
  std::optional<ReduceOp> op;
  for (int holder : holders) {
    const MeshCoordinate at = mesh.CoordinateAt(holder);
    std::vector<int> replica;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      const AxisState& state = layout.state_of_axis(axis);
      if (state.is_replicate()) replica.push_back(at[axis]);
      if (state.is_partial()) op = state.op;
    }
    replicas[replica].push_back(mesh.ranks()[holder]);
  }
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  return absl::StrJoin(replicas, ",",
                       [&](std::string* out, const auto& replica) {
                         const std::vector<int>& ranks = replica.second;
                         if (!op.has_value() || ranks.size() == 1) {
                           absl::StrAppend(out, absl::StrJoin(ranks, ","));
                         } else if (adds) {
                           absl::StrAppend(out, absl::StrJoin(ranks, "+"));
                         } else {
                           absl::StrAppend(out, ToString(*op), "(",
                                           absl::StrJoin(ranks, ","), ")");
                         }
                       });
}

Blocks BlocksOf(const Layout& layout, ShapeView shape) {
  const MeshLayout& mesh = layout.mesh();
  Blocks blocks;
  std::map<std::vector<int64_t>, std::pair<Box, std::vector<int>>> holders;
  for (int i = 0; i < mesh.size(); ++i) {
    const Box box = layout.LocalBox(shape, mesh.CoordinateAt(i));
    if (box.empty()) {
      blocks.empty_ranks.push_back(mesh.ranks()[i]);
      continue;
    }
    auto& block = holders[{box.offsets.begin(), box.offsets.end()}];
    block.first = box;
    block.second.push_back(i);
  }
  for (const auto& [offsets, block] : holders) {
    blocks.by_offset[offsets] = {block.first,
                                 HoldersText(layout, block.second)};
  }
  return blocks;
}

std::string Range(int64_t offset, int64_t size) {
  return absl::StrCat(offset, ":", offset + size);
}

// Returns `cells` in columns of their maximum width, right-aligned.
std::string Aligned(const std::vector<std::vector<std::string>>& cells) {
  std::vector<size_t> widths;
  for (const auto& row : cells) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : "  ",
                      std::string(widths[i] - row[i].size(), ' '), row[i]);
    }
    text += "\n";
  }
  return text;
}

std::string TableOf(const Blocks& blocks, int ndim) {
  // The edges of the blocks along each dim.
  std::map<int64_t, std::string> rows;
  std::map<int64_t, std::string> columns;
  for (const auto& [offsets, block] : blocks.by_offset) {
    const Box& box = block.first;
    rows[offsets[0]] = Range(offsets[0], box.sizes[0]);
    if (ndim == 2) columns[offsets[1]] = Range(offsets[1], box.sizes[1]);
  }
  std::vector<std::vector<std::string>> cells;
  if (!columns.empty()) {
    std::vector<std::string>& heads = cells.emplace_back();
    heads.push_back("");
    for (const auto& [offset, head] : columns) heads.push_back(head);
  }
  for (const auto& [row, head] : rows) {
    std::vector<std::string>& line = cells.emplace_back();
    line.push_back(head);
    if (ndim == 1) {
      line.push_back(blocks.by_offset.at({row}).second);
      continue;
    }
    for (const auto& [column, unused] : columns) {
      line.push_back(blocks.by_offset.at({row, column}).second);
    }
  }
  return Aligned(cells);
}

}  // namespace

std::string VisualizeSharding(const Layout& layout, ShapeView global_shape) {
  const int ndim = static_cast<int>(global_shape.size());
  CH_CHECK_EQ(ndim, layout.ndim())
      << "VisualizeSharding of " << ToString(global_shape) << " as "
      << layout.ToString();
  const Blocks blocks = BlocksOf(layout, global_shape);
  std::string text =
      absl::StrCat(ToString(global_shape), " as ", layout.ToString(), " on ",
                   layout.mesh().ToString(), "\n");
  if (ndim == 1 || ndim == 2) {
    text += TableOf(blocks, ndim);
  } else {
    for (const auto& [offsets, block] : blocks.by_offset) {
      absl::StrAppend(&text, ToString(block.first), "  ", block.second, "\n");
    }
  }
  if (!blocks.empty_ranks.empty()) {
    absl::StrAppend(&text, "without elements: ",
                    absl::StrJoin(blocks.empty_ranks, ","), "\n");
  }
  return text;
}

std::string VisualizeSharding(const Tensor& t) {
  return VisualizeSharding(LayoutOf(t), t.sizes());
}

}  // namespace crosshatch
