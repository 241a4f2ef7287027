// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_WHOLE_OP_H_
#define CROSSHATCH_DTENSOR_DISPATCH_WHOLE_OP_H_

#include "crosshatch/tensor/op.h"

namespace crosshatch {

/// An op that takes distributed tensors as they are: it has no rule, and its
/// Forward runs on the inputs themselves rather than on their local parts.
/// Such are the ops between layouts, between meshes and at the border to local
/// tensors.
class WholeOp : public Op {};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_WHOLE_OP_H_
