// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_

/// \file
/// For tests: a dense tensor that checks shards.

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
  /// Creates a tensor for `layout`, with random summands for each index along
  /// its partial axes.
  DenseTensor(const Layout& layout, ShapeView shape, std::mt19937& random);

  /// Returns each rank's shard, by row-major position on the mesh.
  std::vector<Values> Shards() const;

  /// Returns a description of what is wrong with `shards` as those of this
  /// tensor in the layout `to`, pending reductions performed; empty if nothing
  /// is.
  std::string Mismatch(const Layout& to,
                       const std::vector<Values>& shards) const;

 private:
  Layout layout_;
  Shape shape_;
  /// The summands, by index along the partial axes.
  std::vector<Values> summands_;
  Values values_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_ORACLE_H_
