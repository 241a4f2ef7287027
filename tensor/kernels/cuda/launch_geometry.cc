// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

#include <algorithm>

namespace crosshatch::internal {
namespace {

constexpr int64_t kItemThreads = 256;
// A multiprocessor holds eight blocks of 256 threads, and no device has more
// than 256 multiprocessors.
constexpr int64_t kMaxItemBlocks = 2048;
constexpr int64_t kMaxRowBlocks = (int64_t{1} << 31) - 1;
// For longer rows each thread has several items.
constexpr int64_t kMaxRowThreads = 512;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int RoundUpToWarps(int64_t threads) {
  return static_cast<int>(std::max<int64_t>(CeilDiv(threads, kWarpThreads), 1) *
                          kWarpThreads);
}

}  // namespace

LaunchGeometry GeometryOfItems(int64_t items) {
  LaunchGeometry geometry;
  geometry.threads = RoundUpToWarps(std::min(items, kItemThreads));
  geometry.blocks = std::min(CeilDiv(items, geometry.threads), kMaxItemBlocks);
  return geometry;
}

LaunchGeometry GeometryOfRows(int64_t rows, int64_t items) {
  LaunchGeometry geometry;
  geometry.blocks = std::min(rows, kMaxRowBlocks);
  // Powers of two, so that sums over a block are trees.
  int64_t threads = kWarpThreads;
  while (threads < items && threads < kMaxRowThreads) threads *= 2;
  geometry.threads = static_cast<int>(threads);
  return geometry;
}

LaunchGeometry GeometryOfVectors(int64_t rows, int64_t cols, int width,
                                 int vectors) {
  return GeometryOfRows(rows, CeilDiv(cols, int64_t{width} * vectors));
}

RowPieces PiecesOfRows(int64_t rows, int64_t most, int64_t least) {
  if (rows == 0) return {};
  const int64_t rows_per_piece =
      std::max(CeilDiv(rows, std::min(rows, most)), std::min(rows, least));
  return {CeilDiv(rows, rows_per_piece), rows_per_piece};
}

bool IsVectorAligned(const void* data, DType dtype, int64_t stride, int width) {
  return reinterpret_cast<uintptr_t>(data) %
                 static_cast<uintptr_t>(width * SizeOf(dtype)) ==
             0 &&
         stride % width == 0;
}

}  // namespace crosshatch::internal
