// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_
#define CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_

/// \file
/// The op between two layouts of a mesh. Gradients in other layouts than
/// required go through it, too.

#include <memory>

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"
#include "crosshatch/dtensor/redistribution/options.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (distributed) -> the same values in another layout, and in another dtype if
/// the options have one. The gradient returns in the input's layout with
/// pending reductions replaced by Replicate: each summand has the gradient of
/// the sum.
class RedistributeOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"redistribute"};
  /// \param cause why it communicates.
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

/// Returns a gradient of a distributed tensor in the layout `to`; itself if it
/// has this layout and keeps its dtype. Checks that it is distributed.
/// \param node names the node of the gradient, in messages and counts.
/// \param options for the redistribution; not its layout.
Tensor RedistributeGradient(const Tensor& gradient, const Layout& to,
                            const char* node,
                            const RedistributeOptions& options = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DISPATCH_REDISTRIBUTE_OP_H_
