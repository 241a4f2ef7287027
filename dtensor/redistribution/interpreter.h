// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_INTERPRETER_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_INTERPRETER_H_

/// \file
/// For tests: runs redistribution plans on one thread that holds the shards of
/// all ranks, checks what a plan guarantees, and compares the shards with a
/// dense tensor.

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/cross_mesh_plan.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// Elements in row-major order.
using Values = std::vector<double>;

/// Returns the part `box` of a tensor of shape `shape`.
Values Cut(const Values& tensor, ShapeView shape, const Box& box);

/// Returns the dense tensor that the rank at `coordinate` holds a shard of: the
/// tensor itself, or a summand if the layout is partial.
using DenseAt = std::function<const Values&(const MeshCoordinate& coordinate)>;

/// Returns the shards of all ranks, by row-major position on the mesh.
std::vector<Values> CutAll(const Layout& layout, ShapeView shape,
                           const DenseAt& dense);

/// Returns the reduction of `values` with `op`.
double ReduceValues(ReduceOp op, const std::vector<double>& values);

/// Returns the shards after `plan`, given those before, by row-major position.
/// Aborts unless the plan's steps connect, each pair of ranks agrees on its
/// transfers, each element of a result is written exactly once, the bytes
/// received (as StepCost counts them) match the plan, and no rank holds more
/// elements than the plan states.
std::vector<Values> RunPlan(const RedistributePlan& plan, ShapeView shape,
                            int64_t element_size, std::vector<Values> shards);

/// As above from one mesh to another: takes the shards by position on the
/// source's mesh, gives those by position on the destination's. Checks as well
/// that no rank is sent what it holds.
std::vector<Values> RunCrossMeshPlan(const CrossMeshPlan& plan, ShapeView shape,
                                     int64_t element_size,
                                     std::vector<Values> shards);

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

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_INTERPRETER_H_
