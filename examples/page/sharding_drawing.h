// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_
#define CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_

/// \file
/// Which part of each parameter each rank of a mesh holds, drawn.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::examples {

/// A kind of parameters, as it lies on the ranks.
struct DrawnKind {
  std::string name;
  std::string layout;
  Shape sizes;
  int count = 0;
  /// By column of the drawing; none for a rank that is off its mesh.
  std::vector<std::optional<Box>> boxes;
};

struct ShardingDrawing {
  std::string mesh;
  int64_t ranks = 0;  ///< Of the mesh, also those that are not drawn.
  /// For each rank that is drawn: its number and place on the axes.
  std::vector<std::pair<int, std::string>> columns;
  std::vector<DrawnKind> kinds;
};

/// Of the first `most` ranks of `mesh`.
ShardingDrawing DrawShardings(nn::Module& model, const MeshLayout& mesh,
                              int most = 16);

/// A table with a small picture for each kind and rank: the tensor's outline,
/// and in it the part that the rank holds. Equal parts of a kind have equal
/// colors.
std::string ToHtml(const ShardingDrawing& drawing);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_
