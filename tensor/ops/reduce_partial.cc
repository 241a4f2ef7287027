// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/reduce_partial.h"

#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {

TensorList ReducePartialOp::Forward(TensorSpan inputs) const {
  return {inputs[0]};
}

std::optional<Shape> ReducePartialOp::AliasStrides(const Tensor& /*input*/,
                                                   ShapeView strides) const {
  return Shape(strides.begin(), strides.end());
}

std::shared_ptr<Node> ReducePartialOp::Differentiate(
    TensorSpan /*inputs*/, TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo,
                     [](const auto&, TensorSpan grads, GradientSlots& slots) {
                       slots.Put(0, ReducePartial(grads[0]));
                     });
}

Tensor ReducePartial(const Tensor& a) {
  return a.is_distributed() ? Apply1(ReducePartialOp(), {&a, 1}) : a;
}

}  // namespace crosshatch
