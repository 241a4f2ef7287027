// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_
#define CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_

/// \file
/// The ops between local and distributed tensors.

#include <memory>

#include "absl/types/span.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (local) -> the distributed tensor whose shard on this rank is `local`. It
/// shares memory with the input, as a view. Under autograd it cannot be
/// written. The local gradient is this rank's part of the distributed gradient
/// in `grad_layout`. If there is a gradient, CheckBoundaryGradLayout must
/// accept that layout.
class FromLocalOp final : public WholeOp {
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

/// (distributed) -> this rank's part. It shares memory with the input, as a
/// view. Under autograd it cannot be written. The local gradient is this rank's
/// part of a distributed gradient in `grad_layout`. If there is a gradient,
/// CheckBoundaryGradLayout must accept that layout.
class ToLocalOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {.name = "to_local", .view = true};
  explicit ToLocalOp(const Layout& grad_layout) : grad_layout(grad_layout) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const Layout& grad_layout;
};

/// Returns the layout of `placements` for a tensor of `ndim` dims. Checks that
/// Layout::FromPlacements accepts them; the message names the function `what`.
Layout LayoutBy(const char* what, absl::Span<const Placement> placements,
                const DeviceMesh& mesh, int ndim);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_BOUNDARY_OPS_H_
