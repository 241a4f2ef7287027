// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/redistribute_op.h"

#include <optional>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout_pair.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/saving_node.h"
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

TensorList RedistributeOp::Forward(TensorSpan inputs) const {
  const Tensor& input = inputs[0];
  CH_CHECK(input.is_distributed())
      << "redistribute: " << input.Describe()
      << " is not distributed; FromLocal or Replicated make it so";
  const DTensorHandler& from = DTensorHandler::Of(input);
  DTensorRuntime& runtime = from.interned().runtime;
  const InternedLayout& target = runtime.Intern(to);
  const DType dtype = options.forward_dtype.value_or(input.dtype());
  const absl::StatusOr<const PreparedPlan*> chosen =
      runtime.Plan(from.interned(), target, input.sizes(), SizeOf(dtype),
                   options.cost.has_value() ? &*options.cost : nullptr,
                   options.max_elements);
  if (!chosen.ok()) {
    CH_CHECK(options.cost.has_value() || options.max_elements.has_value())
        << chosen.status();
    RankContext::Current().Poison(chosen.status());
    return {from.Like(Empty(to.LocalShape(input.sizes(), target.here), dtype),
                      target, input.sizes(), ContiguousStrides(input.sizes()),
                      {})};
  }
  const PreparedPlan& plan = **chosen;
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
  return MakeNode<0>(
      kInfo, [to = DTensorHandler::Of(inputs[0]).layout().WithoutPartials(),
              moved = options.backward_dtype.value_or(dtype), dtype,
              cost = options.cost](const auto& self, TensorSpan grads,
                                   GradientSlots& slots) {
        if (!slots.Needed(0)) return;
        // Cast before the redistribution.
        const Tensor gradient = RedistributeGradient(
            grads[0], to, self.name(), {.forward_dtype = moved, .cost = cost});
        slots.Put(0, RedistributeGradient(gradient, to, self.name(),
                                          {.forward_dtype = dtype}));
      });
}

}  // namespace crosshatch
