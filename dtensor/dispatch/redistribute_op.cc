// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/redistribute_op.h"

#include <optional>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

Tensor RedistributeGradient(const Tensor& gradient, const Layout& to,
                            const char* node,
                            const RedistributeOptions& options) {
  CH_CHECK(gradient.is_distributed())
      << node << ": the gradient " << gradient.Describe()
      << " of a distributed tensor is not distributed";
  const bool casts =
      options.forward_dtype.value_or(gradient.dtype()) != gradient.dtype();
  if (!casts && DTensorHandler::Of(gradient).layout() == to) return gradient;
  return Apply1(RedistributeOp(to, CommOrigin::Op(node), options), {gradient});
}

namespace {

class RedistributeNode final : public Node {
 public:
  /// \param moved the dtype in which the gradient is redistributed.
  RedistributeNode(Layout to, DType moved, DType dtype,
                   std::optional<RedistributeCostModel> cost)
      : to_(std::move(to)),
        moved_(moved),
        dtype_(dtype),
        cost_(std::move(cost)) {}
  const char* name() const override { return "redistribute"; }
  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    if (!slots.Needed(0)) return;
    // Cast before the redistribution.
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

}  // namespace

TensorList RedistributeOp::Forward(TensorSpan inputs) const {
  const Tensor& input = inputs[0];
  CH_CHECK(input.is_distributed())
      << "redistribute: " << input.Describe()
      << " is not distributed; FromLocal or Replicated make it so";
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
      return {from.Like(Empty(to.LocalShape(input.sizes(), target.here), dtype),
                        target, input.sizes(), ContiguousStrides(input.sizes()),
                        {})};
    }
    chosen = *asked;
  } else {
    chosen =
        &runtime.Plan(from.interned(), target, input.sizes(), SizeOf(dtype));
  }
  const PreparedPlan& plan = *chosen;
  Tensor source = from.local();
  // A part that does not change keeps its memory on all ranks. A result of
  // communication or of a cast has its own.
  PartInfo info;
  Shape strides = ContiguousStrides(input.sizes());
  if (source.dtype() == dtype && plan.shares_memory) {
    info = from.AliasOrCopyInfo();
  } else if (source.dtype() == dtype && plan.plan.cost.launches == 0 &&
             SameShards(from.layout(), to, input.sizes())) {
    info = from.is_alias_or_copy() ? from.AliasOrCopyInfo()
                                   : PartInfo{.aliasing = Aliasing::kAlias};
    info.regular = from.regular();
    strides = input.strides();
  } else {
    info.regular =
        plan.plan.steps.empty() || plan.plan.steps.back().communicates();
  }
  if (source.dtype() != dtype) source = CastOp(dtype).Forward({source})[0];
  Tensor local = runtime.Redistribute(plan, source, from.mesh(), cause,
                                      options.async ? &info.written : nullptr);
  return {from.Like(std::move(local), target, input.sizes(), std::move(strides),
                    std::move(info))};
}

std::shared_ptr<Node> RedistributeOp::Differentiate(
    TensorSpan inputs, TensorSpan /*outputs*/) const {
  const DType dtype = inputs[0].dtype();
  return std::make_shared<RedistributeNode>(
      GradientLayout(DTensorHandler::Of(inputs[0]).layout()),
      options.backward_dtype.value_or(dtype), dtype, options.cost);
}

}  // namespace crosshatch
