// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_
#define CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_

/// \file
/// Prints which rank holds which part of a tensor.

#include <string>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Returns a table of the blocks of a tensor of `global_shape` with the world
/// ranks that hold them; rows for dim 0, columns for dim 1:
///
///     [5, 6] as [S(0),S(1)] on mesh(dp=2, tp=2)
///               0:3  3:6
///         0:3     0    1
///         3:5     2    3
///
/// Ranks that replicate a block are separated by commas, ranks that hold
/// summands of it by "+" ("max(0,1)" for other reductions). Ranks without
/// elements are listed below the table. A tensor of other than one or two dims
/// has a line for each block.
std::string VisualizeSharding(const Layout& layout, ShapeView global_shape);

/// Returns the table of a distributed tensor (checked). Communicates nothing.
std::string VisualizeSharding(const Tensor& t);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_VISUALIZE_SHARDING_H_
