// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_
#define CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_

/// \file
/// The ops between layouts, and between local and distributed tensors. They
/// have no rules: DTensorHandler runs them itself.

#include <memory>

#include "crosshatch/dtensor/comm_origin.h"
#include "crosshatch/dtensor/layout.h"
#include "crosshatch/dtensor/redistribute_options.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

class DTensorHandler;

/// (distributed) -> the same values in another layout, of another dtype if the
/// options say so. The gradient goes back in the input's layout, pending
/// reductions of the input read as replicated: each summand has the gradient of
/// the sum.
class RedistributeOp final : public Op {
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

  TensorList Run(const Tensor& input) const;

  const Layout& to;
  const CommOrigin cause;
  const RedistributeOptions options;
};

/// (local) -> the distributed tensor that it is this rank's part of, in the
/// same memory: a view, which takes no write where autograd records. The
/// gradient is the local part of the distributed one in `grad_layout`, which
/// CheckBorderGradLayout must allow where there is a gradient.
class FromLocalOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "from_local", .view = true};
  FromLocalOp(const DeviceMesh& mesh, const Layout& layout, ShapeView sizes,
              const Layout& grad_layout)
      : mesh(mesh), layout(layout), sizes(sizes), grad_layout(grad_layout) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const DeviceMesh& mesh;
  const Layout& layout;
  const ShapeView sizes;
  const Layout& grad_layout;
};

/// (distributed) -> this rank's part, in the same memory: a view, which takes
/// no write where autograd records. The gradient, local, is this rank's part of
/// a distributed one in `grad_layout`, which CheckBorderGradLayout must allow
/// where there is a gradient.
class ToLocalOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "to_local", .view = true};
  explicit ToLocalOp(const Layout& grad_layout) : grad_layout(grad_layout) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  TensorList Run(const Tensor& input) const;

  const Layout& grad_layout;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_
