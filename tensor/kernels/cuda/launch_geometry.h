// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_

/// \file
/// The blocks and threads of a kernel, and the elements per thread: pure
/// functions of the problem. They do not query the device, so that sums are
/// split in the same way on all devices.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

/// Maximum bytes that a thread loads or stores by one instruction.
inline constexpr int64_t kVectorBytes = 16;
inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxBlockThreads = 1024;

/// Blocks of threads_y x threads threads; threads are adjacent. All are
/// positive except the blocks, which may be 0.
struct LaunchGeometry {
  int64_t blocks = 0;
  int threads = kWarpThreads;
  int threads_y = 1;
  int64_t blocks_y = 1;
  /// Shared memory of a block whose size the launch determines
  /// (CH_DYNAMIC_SHARED).
  int shared_bytes = 0;
};

/// Returns the geometry for independent items, which the grid's threads process
/// in a loop: at most 256 threads per block, and enough blocks to fill any
/// device.
LaunchGeometry GeometryOfItems(int64_t items);

/// Returns the geometry for one block per row: threads for `items` of a row,
/// each processed at once. Rows beyond the maximum of blocks are processed in a
/// loop.
LaunchGeometry GeometryOfRows(int64_t rows, int64_t items);

/// Returns the geometry for rows of `cols` columns, of which a thread processes
/// vectors of `width`, up to `vectors` of them: fewer threads synchronize less,
/// and leave room for more rows on the device.
LaunchGeometry GeometryOfVectors(int64_t rows, int64_t cols, int width,
                                 int vectors);

/// The split of `rows` rows into at most `most` pieces of equally many whole
/// rows, at least `least` unless there are fewer.
struct RowPieces {
  int64_t pieces = 0;
  int64_t rows_per_piece = 0;
};
RowPieces PiecesOfRows(int64_t rows, int64_t most, int64_t least);

/// Returns the elements in 16 bytes of the widest operand, which a thread
/// processes at once.
constexpr int VectorWidthOf(DType widest) {
  return static_cast<int>(kVectorBytes / SizeOf(widest));
}

/// Returns whether vectors of `width` elements of `dtype` can be read from
/// `data` and from each multiple of `stride` elements after it.
bool IsVectorAligned(const void* data, DType dtype, int64_t stride, int width);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_LAUNCH_GEOMETRY_H_
