// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_

/// \file
/// The op between two layouts of a mesh; gradients that lie otherwise than they
/// should go through it.

#include <memory>

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/options.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (distributed) -> the same values in another layout, of another dtype if the
/// options say so. The gradient goes back in the input's layout, pending
/// reductions of the input read as replicated: each summand has the gradient of
/// the sum.
class RedistributeOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"redistribute"};
  /// \param cause what it is done for.
  explicit RedistributeOp(const Layout& to,
                          const CommOrigin& cause = CommOrigin::Explicit(),
                          const RedistributeOptions& options = {})
      : to(to), cause(cause), options(options) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const Layout& to;
  const CommOrigin cause;
  const RedistributeOptions options;
};

/// A gradient of a distributed tensor in the layout `to`, itself where it lies
/// so already and keeps its dtype. Checks that it is distributed.
/// \param node whose gradient it is, for messages and counts.
/// \param options of how, not of when: they hold no layout.
Tensor RedistributeGradient(const Tensor& gradient, const Layout& to,
                            const char* node,
                            const RedistributeOptions& options = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_
