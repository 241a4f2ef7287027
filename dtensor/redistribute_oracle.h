// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_ORACLE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_ORACLE_H_

/// \file
/// For tests: a dense tensor that says whether shards are right, and layouts to
/// try, all of them or at random.

#include <random>
#include <string>
#include <vector>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/dtensor/redistribute_interpreter.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Axes "dp", "tp", "cp" of the given sizes, over ranks 0..n-1 or `ranks`.
MeshLayout OracleMesh(const std::vector<int>& sizes,
                      std::vector<int> ranks = {});

/// From "[S(0),R]".
Layout LayoutOf(const MeshLayout& mesh, int ndim, const std::string& text);

/// A tensor of small random integers, whose sums and products are exact.
class DenseTensor {
 public:
  /// One that lies as `layout` says: with random summands for each place along
  /// its partial axes.
  DenseTensor(const Layout& layout, ShapeView shape, std::mt19937& random);

  /// By row-major position on the mesh.
  std::vector<Values> Shards() const;

  /// What is wrong with `shards` as those of this tensor in the layout `to`,
  /// pending reductions done; empty if nothing is.
  std::string Mismatch(const Layout& to,
                       const std::vector<Values>& shards) const;

 private:
  Layout layout_;
  Shape shape_;
  /// By place along the partial axes.
  std::vector<Values> summands_;
  Values values_;
};

/// Every layout of tensors of `ndim` dims on `mesh` with unit 1 and the given
/// reductions.
std::vector<Layout> AllLayouts(const MeshLayout& mesh, int ndim,
                               const std::vector<ReduceOp>& ops);

/// A layout in which each axis does something at random, with random units that
/// a random number of axes keep to.
Layout RandomLayout(const MeshLayout& mesh, int ndim, std::mt19937& random);

/// Of `ndim` dims of up to `most` elements.
Shape RandomShape(int ndim, int most, std::mt19937& random);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_ORACLE_H_
