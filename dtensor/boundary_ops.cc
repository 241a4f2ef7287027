// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/boundary_ops.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/cross_mesh_op.h"
#include "crosshatch/dtensor/dtensor_handler.h"
#include "crosshatch/tensor/node.h"

namespace crosshatch {
namespace {

Tensor RedistributeGradient(const Tensor& gradient, const Layout& to,
                            const char* node) {
  CH_CHECK(gradient.is_distributed())
      << node << ": the gradient " << gradient.Describe()
      << " of a distributed tensor is not distributed";
  if (DTensorHandler::Of(gradient).layout() == to) return gradient;
  return Apply1(RedistributeOp(to), {gradient});
}

class RedistributeNode final : public Node {
 public:
  explicit RedistributeNode(Layout to) : to_(std::move(to)) {}
  const char* name() const override { return "redistribute"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    slots.Put(0, RedistributeGradient(output_grads[0], to_, name()));
  }
  void ReleaseSaved() override {}

 private:
  const Layout to_;
};

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

 private:
  const DeviceMesh mesh_;
  const Layout layout_;
  const Shape sizes_;
  const Layout grad_layout_;
};

}  // namespace

TensorList RedistributeOp::Forward(TensorSpan inputs) const {
  CH_CHECK(false) << "redistribute: " << inputs[0].Describe()
                  << " is not distributed; FromLocal or Replicated make it so";
  return {};
}

TensorList RedistributeOp::Run(const Tensor& input) const {
  const DTensorHandler& from = DTensorHandler::Of(input);
  DTensorRuntime& runtime = from.interned().runtime;
  const InternedLayout& target = runtime.Intern(to);
  const PreparedPlan& plan = runtime.Plan(from.interned(), target,
                                          input.sizes(), SizeOf(input.dtype()));
  Tensor local = runtime.Redistribute(plan, from.local(), from.mesh(), for_op);
  return {Wrap(std::move(local), target, from.mesh(), input.sizes())};
}

std::shared_ptr<Node> RedistributeOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  return std::make_shared<RedistributeNode>(
      GradientLayout(DTensorHandler::Of(inputs[0]).layout()));
}

TensorList FromLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(layout.mesh() == mesh.layout())
      << "from_local: the layout is on " << layout.mesh().ToString()
      << ", the mesh is " << mesh.ToString();
  return {Wrap(inputs[0].Detach(), DTensorRuntime::Current().Intern(layout),
               mesh, Shape(sizes.begin(), sizes.end()))};
}

std::shared_ptr<Node> FromLocalOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  return std::make_shared<FromLocalNode>(layout, grad_layout);
}

TensorList ToLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(false) << "to_local: " << inputs[0].Describe()
                  << " is local already";
  return {};
}

TensorList ToLocalOp::Run(const Tensor& input) const {
  return {DTensorHandler::Of(input).local().Detach()};
}

std::shared_ptr<Node> ToLocalOp::Differentiate(TensorSpan inputs,
                                               TensorSpan /*outputs*/) const {
  return std::make_shared<ToLocalNode>(inputs[0], grad_layout);
}

}  // namespace crosshatch
