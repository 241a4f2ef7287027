// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_RULE_HANDLER_H_
#define CROSSHATCH_DTENSOR_DISPATCH_RULE_HANDLER_H_

/// \file
/// The one path that ops on distributed tensors take:
///
/// 1. Look the call up in the rank's cache, by the op's address and attributes
///    and the inputs' layouts (as numbers), sizes and dtypes. On a miss ask the
///    op's rule (op_rule.h).
/// 2. Redistribute those inputs that lie otherwise than the rule asks.
/// 3. Run the op on the local tensors.
/// 4. Wrap the results. Whether one aliases an operand was settled by what
/// ranks
///    share: layouts, sizes, and the strides of the whole.
///
/// A WholeOp is run as it is.

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

class RuleHandler final : public DTensorHandler {
 public:
  using DTensorHandler::DTensorHandler;

  TensorList Dispatch(const Op& op, TensorSpan inputs) const override;
  Tensor ConformGradient(const Tensor& leaf, Tensor gradient) const override;
  Tensor Like(Tensor local, const InternedLayout& layout, Shape sizes,
              Shape strides, PartInfo info) const override;
};

/// A distributed tensor of global shape `sizes`, contiguous and outside of the
/// graph. Checks that `local` has the shape of this rank's shard.
Tensor Wrap(Tensor local, const InternedLayout& layout, const DeviceMesh& mesh,
            Shape sizes, PartInfo info = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_RULE_HANDLER_H_
