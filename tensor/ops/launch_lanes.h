// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_LAUNCH_LANES_H_
#define CROSSHATCH_TENSOR_OPS_LAUNCH_LANES_H_

/// \file
/// As launch.h, for the kernels that work along one dim.

#include "crosshatch/tensor/kernels/lane_kernels.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Issues *kernel of the device's table to the current stream; nothing in a dry
/// run. The args are copied.
template <typename Args>
void LaunchLanes(void (*LaneKernels::*kernel)(const Args&, KernelContext&),
                 const Args& args) {
  RankContext& context = RankContext::Current();
  if (context.device().is_meta()) return;
  context.current_stream().Launch(
      [args, run = LaneKernelsOf(context.device()).*kernel](KernelContext& on) {
        run(args, on);
      });
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_LAUNCH_LANES_H_
