// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/attention_geometry.h"

#include <algorithm>

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
  return (args.dtype == DType::kBFloat16 || args.dtype == DType::kFloat16) &&
         args.head_dim <= kMmaMostCols;
}

}  // namespace crosshatch::internal::attention
