// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/index_range.h"

#include "crosshatch/tensor/kernels/index_kernels.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {

void LaunchIndexRangeCheck(const CheckIndexRangeArgs& args) {
  RankContext& context = RankContext::Current();
  if (context.device().is_meta()) return;
  const auto check = IndexKernelsOf(context.device()).check_index_range;
  context.current_stream().Launch([args, check, &context](KernelContext& on) {
    if (!context.poisoned()) check(args, on);
  });
}

}  // namespace crosshatch::internal
