// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_

/// \file
/// How many blocks of how many threads a kernel of attention gets, and which
/// kernels: pure functions of the problem.

#include <cstdint>

#include "crosshatch/tensor/kernels/attention_kernels.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

namespace crosshatch::internal::attention {

/// Blocks for the `rows` rows of each of `heads` heads, those of all batch rows
/// together, and for `col_blocks` parts of their columns. Each warp has
/// `of_warp` rows, and a block as many warps as a head has work for, up to
/// `most_warps`; blocks are of one head each, by heads, then rows.
LaunchGeometry GeometryOfTiles(int64_t heads, int64_t rows, int of_warp,
                               int most_warps, int64_t col_blocks);

/// Most columns of a head that the kernels by products of warps take.
inline constexpr int64_t kMmaMostCols = 128;

/// Whether the products of attention are made by warps, on tensor cores
/// (attention_mma.h): of 16-bit operands with heads that are not too wide.
bool IsByMma(const AttentionArgs& args);

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_GEOMETRY_H_
