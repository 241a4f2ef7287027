// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_TESTUTIL_H_

/// \file
/// Meshes and layouts for tests, exhaustive or random.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Returns a mesh of axes "dp", "tp", "cp" of the given sizes, over ranks
/// 0..n-1 or `ranks`.
MeshLayout OracleMesh(const std::vector<int>& sizes,
                      std::vector<int> ranks = {});

/// Parses a layout as it prints: "[S(0),R]".
Layout LayoutOf(const MeshLayout& mesh, int ndim, const std::string& text);

/// Returns a mesh of one of `shapes`, over some of `world` ranks in a random
/// order.
MeshLayout RandomMesh(const std::vector<std::vector<int>>& shapes, int world,
                      std::mt19937& random);
/// Returns every layout of a tensor of `ndim` dims on `mesh`, including every
/// order of axes that split one dim, with these pending reductions, and with
/// `unit` in every dim that is split.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops,
                               int64_t unit = 1);
/// As above with unit 1, and with pending sums if `sums`.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim, bool sums);

/// Returns a random layout in which each axis has a role, with units that some
/// of the axes respect, and with cuts.
Layout RandomLayout(const MeshLayout& mesh, int ndim, std::mt19937& random);

/// Returns a random shape of `ndim` dims of up to `most` elements.
Shape RandomShape(int ndim, int most, std::mt19937& random);

/// \name Fuzz tests of distributed tensors
/// @{

/// Returns a number from the environment.
inline unsigned FuzzCases(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr
             ? otherwise
             : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

inline unsigned FuzzSeed() {
  return FuzzCases("CROSSHATCH_FUZZ_SEED", 20240607);
}

/// Returns meshes of one to three axes and up to 18 ranks.
inline const std::vector<std::vector<int>>& FuzzMeshes() {
  static const auto* const meshes = new std::vector<std::vector<int>>{
      {3}, {2, 2}, {2, 3}, {4, 2}, {2, 2, 2}, {3, 2, 2}, {2, 1, 3}, {3, 3, 2}};
  return *meshes;
}
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_LAYOUT_LAYOUT_TESTUTIL_H_
