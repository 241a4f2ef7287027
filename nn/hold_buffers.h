// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_HOLD_BUFFERS_H_
#define CROSSHATCH_NN_HOLD_BUFFERS_H_

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// `forward`, the forward of `module` that Recomputed (tensor/recompute.h) runs
/// and runs again, with checks that both find the buffers of the module and
/// below as they are: one that is written within, or between the two, would
/// give gradients of other values. The module outlives the result.
Module::ForwardFunction HoldBuffers(Module& module,
                                    Module::ForwardFunction forward);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_HOLD_BUFFERS_H_
