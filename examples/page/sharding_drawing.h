// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_
#define CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_

/// \file
/// Draws the part of each parameter that each rank of a mesh holds.

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

/// A kind of parameters and its layout.
struct DrawnKind {
  std::string name;
  std::string layout;
  Shape sizes;
  int count = 0;
  /// By column of the drawing; unset for a rank that is not on the parameter's
  /// mesh.
  std::vector<std::optional<Box>> boxes;
};

/// The parameters of a model on the ranks of a mesh.
struct ShardingDrawing {
  std::string mesh;
  int64_t ranks = 0;  ///< Of the mesh, drawn or not.
  /// World rank and coordinate of each drawn rank.
  std::vector<std::pair<int, std::string>> columns;
  std::vector<DrawnKind> kinds;
};

/// Returns a drawing of the first `most` ranks of `mesh`.
ShardingDrawing DrawShardings(nn::Module& model, const MeshLayout& mesh,
                              int most = 16);

/// Returns a table with a small picture for each kind and rank: the tensor's
/// outline with the rank's part. Equal parts of a kind have the same color.
std::string ToHtml(const ShardingDrawing& drawing);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_SHARDING_DRAWING_H_
