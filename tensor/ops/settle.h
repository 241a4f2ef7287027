// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_SETTLE_H_
#define CROSSHATCH_TENSOR_OPS_SETTLE_H_

/// \file
/// What ops that are made of others do about pending reductions.

#include <memory>
#include <optional>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> the same values, with no reduction pending.
class SettleOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "settle", .view = true};
  const OpInfo& info() const override { return kInfo; }
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// `a` after the reductions that are pending of it, where it is distributed;
/// else `a` itself. Each op that does not commute with a pending reduction does
/// it by itself: what uses a value more than once, now or in backward, settles
/// it first, and the ranks reduce it once. The gradient is settled as well.
/// The result may share memory with `a` and is not to be written.
Tensor Settle(const Tensor& a);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_SETTLE_H_
