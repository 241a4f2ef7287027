// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"

#include <algorithm>
#include <cstdint>

#include "crosshatch/base/check.h"

namespace crosshatch::internal::attention {

LaunchGeometry GeometryOfTiles(int64_t heads, int64_t rows, int of_warp,
                               int most_warps, int64_t col_blocks) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t warps =
      std::clamp<int64_t>(ceil_div(rows, of_warp), 1, most_warps);
  LaunchGeometry geometry;
  geometry.blocks = heads * ceil_div(rows, warps * of_warp);
  geometry.blocks_y = col_blocks;
  geometry.threads = static_cast<int>(warps) * kWarpThreads;
  CH_CHECK_LT(geometry.blocks, int64_t{1} << 31) << "attention kernel";
  return geometry;
}

bool IsByMma(const AttentionArgs& args) {
  // Kernels count rows in int.
  constexpr int64_t kMostRows = int64_t{1} << 30;
  return (args.dtype == DType::kBFloat16 || args.dtype == DType::kFloat16) &&
         args.head_dim <= kMmaMostCols && args.q_len <= kMostRows &&
         args.kv_len <= kMostRows;
}

bool HasVectorRows(const HeadsInput& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         x.batch_stride % 8 == 0 && x.time_stride % 8 == 0 &&
         x.head_stride % 8 == 0;
}
bool HasVectorRows(const HeadsOutput& x) {
  return HasVectorRows(
      HeadsInput{x.data, x.batch_stride, x.time_stride, x.head_stride});
}

bool IsPlain(const AttentionArgs& args) {
  return args.mask.data == nullptr && args.slopes == nullptr &&
         args.dropout == 0 && args.head_dim == MmaColsOf(args.head_dim) &&
         args.scale > 0 && args.scale <= 0.5 && HasVectorRows(args.q) &&
         HasVectorRows(args.k) && HasVectorRows(args.v) &&
         HasVectorRows(args.out);
}

bool IsPlain(const AttentionBackwardArgs& args) {
  return IsPlain(args.forward) && HasVectorRows(args.grad) &&
         HasVectorRows(args.dq) && HasVectorRows(args.dk) &&
         HasVectorRows(args.dv);
}

LaunchGeometry MmaGeometry(const AttentionArgs& args, int64_t heads,
                           int64_t rows, int of_block) {
  LaunchGeometry geometry;
  geometry.blocks = args.batch * heads * ((rows + of_block - 1) / of_block);
  geometry.blocks_y = args.head_dim > 0 ? 1 : 0;
  geometry.threads = kMmaWarps * kWarpThreads;
  CH_CHECK_LT(geometry.blocks, int64_t{1} << 31) << "attention kernel";
  return geometry;
}

MmaBackwardLayout::MmaBackwardLayout(const AttentionArgs& args) {
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const bool has_shifts =
      args.mask.data != nullptr && args.mask.dtype != DType::kBool;
  const int64_t heads = args.batch * args.q_heads;
  const int cols = MmaColsOf(args.head_dim);
  query_tiles = (args.q_len + kMmaQueries - 1) / kMmaQueries;
  sums_offset = aligned(heads * args.q_len * (has_shifts ? 8 : 4));
  // The only block of keys needs no sums in memory.
  const bool has_sums = args.kv_len > MmaKeysOf(cols);
  const int64_t tile_bytes = has_sums ? int64_t{4} * kMmaQueries * cols : 0;
  counts_offset = sums_offset + heads * query_tiles * tile_bytes;
  // A count for each warp and tile, and one for all blocks.
  bytes = counts_offset + aligned(4 * (heads * query_tiles * kMmaWarps + 1));
}

}  // namespace crosshatch::internal::attention
