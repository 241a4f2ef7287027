// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_

/// \file
/// The kernels of attention for a problem, and their blocks and threads: pure
/// functions of the problem.

#include <cstdint>

#include "crosshatch/tensor/kernels/attention_kernels.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

namespace crosshatch::internal::attention {

/// Returns blocks for `rows` rows of each of `heads` heads, over all batch
/// rows, and for `col_blocks` parts of their columns. Each warp has `of_warp`
/// rows. A block has as many warps as a head has work for, up to `most_warps`.
/// Blocks are of one head each, ordered by head, then rows.
LaunchGeometry GeometryOfTiles(int64_t heads, int64_t rows, int of_warp,
                               int most_warps, int64_t col_blocks);

/// The maximum columns of a head for the warp-product kernels.
inline constexpr int64_t kMmaMostCols = 128;

/// Returns whether warps compute the products of attention on tensor cores
/// (attention_mma.h): for 16-bit operands with heads that are not too wide.
bool IsByMma(const AttentionArgs& args);

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
