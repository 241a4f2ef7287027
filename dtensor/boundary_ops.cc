// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/boundary_ops.h"

#include <utility>

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/tensor/node.h"

namespace crosshatch {
namespace {

class FromLocalNode final : public Node {
 public:
  FromLocalNode(Layout layout, Layout grad_layout)
      : layout_(std::move(layout)), grad_layout_(std::move(grad_layout)) {}
  const char* name() const override { return "from_local"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    const Tensor gradient =
        RedistributeGradient(output_grads[0], grad_layout_, name());
    slots.Put(0, Apply1(ToLocalOp(layout_), {gradient}));
  }
  void ReleaseSaved() override {}

 private:
  const Layout layout_;
  const Layout grad_layout_;
};

class ToLocalNode final : public Node {
 public:
  ToLocalNode(const Tensor& input, Layout grad_layout)
      : mesh_(DTensorHandler::Of(input).mesh()),
        layout_(DTensorHandler::Of(input).layout()),
        sizes_(input.sizes()),
        grad_layout_(std::move(grad_layout)) {}
  const char* name() const override { return "to_local"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    const Tensor& local = output_grads[0];
    CH_CHECK(!local.is_distributed())
        << "to_local: the gradient of a local tensor is distributed";
    slots.Put(
        0, Apply1(FromLocalOp(mesh_, grad_layout_, sizes_, layout_), {local}));
  }
  void ReleaseSaved() override {}

  const Layout& layout() const { return layout_; }

 private:
  const DeviceMesh mesh_;
  const Layout layout_;
  const Shape sizes_;
  const Layout grad_layout_;
};

}  // namespace

const Layout* ToLocalLayout(const Tensor& local) {
  const auto* node =
      dynamic_cast<const ToLocalNode*>(GradEdge(local).node.get());
  return node == nullptr ? nullptr : &node->layout();
}

TensorList FromLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(!inputs[0].is_distributed())
      << "from_local: " << inputs[0].Describe() << " is distributed already";
  CH_CHECK(layout.mesh() == mesh.layout())
      << "from_local: the layout is on " << layout.mesh().ToString()
      << ", the mesh is " << mesh.ToString();
  return {Wrap(inputs[0].Detach(), DTensorRuntime::Current().Intern(layout),
               mesh, Shape(sizes.begin(), sizes.end()),
               {.aliasing = Aliasing::kAlias, .regular = false})};
}

std::shared_ptr<Node> FromLocalOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  CH_CHECK_OK(CheckBoundaryGradLayout(kInfo.name, layout, grad_layout));
  return std::make_shared<FromLocalNode>(layout, grad_layout);
}

TensorList ToLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(inputs[0].is_distributed())
      << "to_local: " << inputs[0].Describe() << " is local already";
  return {DTensorHandler::Of(inputs[0]).local().Detach()};
}

std::shared_ptr<Node> ToLocalOp::Differentiate(TensorSpan inputs,
                                               TensorSpan /*outputs*/) const {
  CH_CHECK_OK(CheckBoundaryGradLayout(
      kInfo.name, DTensorHandler::Of(inputs[0]).layout(), grad_layout));
  return std::make_shared<ToLocalNode>(inputs[0], grad_layout);
}

Layout LayoutBy(const char* what, absl::Span<const Placement> placements,
                const DeviceMesh& mesh, int ndim) {
  absl::StatusOr<Layout> layout =
      Layout::FromPlacements(mesh.layout(), ndim, placements);
  CH_CHECK_OK(layout.status())
      << " in " << what << " by placements " << ToString(placements) << " on "
      << mesh.ToString();
  return *std::move(layout);
}

}  // namespace crosshatch
