// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/settle.h"

#include "crosshatch/tensor/ops/saving_node.h"

namespace crosshatch {

TensorList SettleOp::Forward(TensorSpan inputs) const { return {inputs[0]}; }

std::optional<Shape> SettleOp::AliasStrides(const Tensor& /*input*/,
                                            ShapeView strides) const {
  return Shape(strides.begin(), strides.end());
}

std::shared_ptr<Node> SettleOp::Differentiate(TensorSpan /*inputs*/,
                                              TensorSpan /*outputs*/) const {
  return MakeNode<0>(kInfo,
                     [](const auto&, TensorSpan grads, GradientSlots& slots) {
                       slots.Put(0, Settle(grads[0]));
                     });
}

Tensor Settle(const Tensor& a) {
  return a.is_distributed() ? Apply1(SettleOp(), {&a, 1}) : a;
}

}  // namespace crosshatch
