// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_

/// \file
/// How many blocks of how many threads a kernel gets, and how many elements a
/// thread takes at once: pure functions of the problem. They do not ask the
/// device, so that sums are cut in the same places on all of them.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

/// Bytes that a thread loads or stores by one instruction at most.
inline constexpr int64_t kVectorBytes = 16;
inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxBlockThreads = 1024;

/// Blocks of threads_y x threads threads, the latter side by side. All of them
/// are positive but for the blocks, of which there may be none.
struct LaunchGeometry {
  int64_t blocks = 0;
  int threads = kWarpThreads;
  int threads_y = 1;
  int64_t blocks_y = 1;
};

/// For items that are independent of one another, which the threads of the grid
/// take in turns: at most 256 threads a block, and enough blocks to fill any
/// device, of which each then takes several.
LaunchGeometry GeometryOfItems(int64_t items);

/// For rows that are a block's each: threads for `items` of a row, each of
/// which a thread takes at once. Rows beyond the most blocks are taken in
/// turns.
LaunchGeometry GeometryOfRows(int64_t rows, int64_t items);

/// For rows of `cols` columns, of which a thread takes vectors of `width` at
/// once and up to `vectors` of them: fewer threads do less together, and leave
/// the device more rows.
LaunchGeometry GeometryOfVectors(int64_t rows, int64_t cols, int width,
                                 int vectors);

/// The cut of `rows` rows into at most `most` pieces of as many whole rows, of
/// `least` or more unless there are fewer.
struct RowPieces {
  int64_t pieces = 0;
  int64_t rows_per_piece = 0;
};
RowPieces PiecesOfRows(int64_t rows, int64_t most, int64_t least);

/// Elements of 16 bytes: how many of the widest operand a thread takes at once.
constexpr int VectorWidthOf(DType widest) {
  return static_cast<int>(kVectorBytes / SizeOf(widest));
}

/// Whether vectors of `width` elements of `dtype` can be read from `data` and
/// from each multiple of `stride` elements after it.
bool IsVectorAligned(const void* data, DType dtype, int64_t stride, int width);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_
