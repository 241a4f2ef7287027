// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_HOLD_BUFFERS_H_
#define CROSSHATCH_NN_HOLD_BUFFERS_H_

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// Wraps `forward` of `module` for Recomputed (tensor/recompute.h) with checks
/// that both runs find the same buffers in the module and below. A buffer that
/// is written within a run, or between the two, would give wrong gradients. The
/// module must outlive the result.
Module::ForwardFunction HoldBuffers(Module& module,
                                    Module::ForwardFunction forward);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_HOLD_BUFFERS_H_
