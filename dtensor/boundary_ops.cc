// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/boundary_ops.h"

#include <optional>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor_handler.h"
#include "crosshatch/dtensor/grad_layout.h"
#include "crosshatch/dtensor/layout_pair.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

// \param options of how, not of when: they hold no layout.
Tensor RedistributeGradient(const Tensor& gradient, const Layout& to,
                            const char* node,
                            const RedistributeOptions& options = {}) {
  CH_CHECK(gradient.is_distributed())
      << node << ": the gradient " << gradient.Describe()
      << " of a distributed tensor is not distributed";
  const bool casts =
      options.forward_dtype.value_or(gradient.dtype()) != gradient.dtype();
  if (!casts && DTensorHandler::Of(gradient).layout() == to) return gradient;
  return Apply1(RedistributeOp(to, CommOrigin::Op(node), options), {gradient});
}

class RedistributeNode final : public Node {
 public:
  /// \param moved the dtype that the gradient is moved in.
  RedistributeNode(Layout to, DType moved, DType dtype,
                   std::optional<RedistributeCostModel> cost)
      : to_(std::move(to)),
        moved_(moved),
        dtype_(dtype),
        cost_(std::move(cost)) {}
  const char* name() const override { return "redistribute"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    // Cast before it moves.
    const Tensor gradient = RedistributeGradient(
        output_grads[0], to_, name(), {.forward_dtype = moved_, .cost = cost_});
    slots.Put(0, RedistributeGradient(gradient, to_, name(),
                                      {.forward_dtype = dtype_}));
  }
  void ReleaseSaved() override {}

 private:
  const Layout to_;
  const DType moved_;
  const DType dtype_;
  const std::optional<RedistributeCostModel> cost_;
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
  const DType dtype = options.forward_dtype.value_or(input.dtype());
  const PreparedPlan* chosen = nullptr;
  if (options.cost.has_value() || options.max_elements.has_value()) {
    const absl::StatusOr<const PreparedPlan*> asked = runtime.Plan(
        from.interned(), target, input.sizes(), SizeOf(dtype),
        options.cost.value_or(RedistributeCostModel()), options.max_elements);
    if (!asked.ok()) {
      RankContext::Current().Poison(asked.status());
      return {Wrap(Empty(to.LocalShape(input.sizes(), target.here), dtype),
                   target, from.mesh(), input.sizes())};
    }
    chosen = *asked;
  } else {
    chosen =
        &runtime.Plan(from.interned(), target, input.sizes(), SizeOf(dtype));
  }
  const PreparedPlan& plan = *chosen;
  Tensor source = from.local();
  // Where it stays, it stays on all ranks; and what communicates or casts has
  // memory of its own.
  PartInfo info;
  Shape strides = ContiguousStrides(input.sizes());
  if (source.dtype() == dtype && plan.shares_memory) {
    info = from.ShadowInfo();
  } else if (source.dtype() == dtype && plan.plan.cost.launches == 0 &&
             SameShards(from.layout(), to, input.sizes())) {
    info = from.is_shadow() ? from.ShadowInfo()
                            : PartInfo{.tie = MemoryTie::kAlias};
    info.regular = from.regular();
    strides = input.strides();
  } else {
    info.regular =
        plan.plan.steps.empty() || plan.plan.steps.back().communicates();
  }
  if (source.dtype() != dtype) source = CastOp(dtype).Forward({source})[0];
  Tensor local = runtime.Redistribute(plan, source, from.mesh(), cause,
                                      options.async ? &info.written : nullptr);
  return {
      MakeHandled(std::make_shared<DTensorHandler>(
                      std::move(local), target, from.mesh(), std::move(info)),
                  input.sizes(), std::move(strides), dtype)};
}

std::shared_ptr<Node> RedistributeOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  const DType dtype = inputs[0].dtype();
  return std::make_shared<RedistributeNode>(
      GradientLayout(DTensorHandler::Of(inputs[0]).layout()),
      options.backward_dtype.value_or(dtype), dtype, options.cost);
}

TensorList FromLocalOp::Forward(TensorSpan inputs) const {
  CH_CHECK(layout.mesh() == mesh.layout())
      << "from_local: the layout is on " << layout.mesh().ToString()
      << ", the mesh is " << mesh.ToString();
  return {Wrap(inputs[0].Detach(), DTensorRuntime::Current().Intern(layout),
               mesh, Shape(sizes.begin(), sizes.end()),
               {.tie = MemoryTie::kAlias, .regular = false})};
}

std::shared_ptr<Node> FromLocalOp::Differentiate(TensorSpan /*inputs*/,
                                                 TensorSpan /*outputs*/) const {
  CH_CHECK_OK(CheckBorderGradLayout(kInfo.name, layout, grad_layout));
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
  CH_CHECK_OK(CheckBorderGradLayout(
      kInfo.name, DTensorHandler::Of(inputs[0]).layout(), grad_layout));
  return std::make_shared<ToLocalNode>(inputs[0], grad_layout);
}

}  // namespace crosshatch
