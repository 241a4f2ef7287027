// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_

/// \file
/// For tests: a dense tensor that says whether shards are right.

#include <random>
#include <string>
#include <vector>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// A tensor of small random integers, whose sums and products are exact.
class DenseTensor {
 public:
  /// One that lies as `layout` says: with random summands for each place along
  /// its partial axes.
  DenseTensor(const Layout& layout, ShapeView shape, std::mt19937& random);

  /// What each rank has, by its row-major position on the mesh.
  std::vector<Values> Shards() const;

  /// What is wrong with `shards` as those of this tensor in the layout `to`,
  /// pending reductions done; empty if nothing is.
  std::string Mismatch(const Layout& to,
                       const std::vector<Values>& shards) const;

 private:
  Layout layout_;
  Shape shape_;
  /// What is added up, by place along the partial axes.
  std::vector<Values> summands_;
  Values values_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_
