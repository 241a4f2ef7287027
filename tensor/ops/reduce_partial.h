// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_REDUCE_PARTIAL_H_
#define CROSSHATCH_TENSOR_OPS_REDUCE_PARTIAL_H_

/// \file
/// Pending reductions within ops that are composed of others.

#include <memory>
#include <optional>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> the same values, without pending reductions.
class ReducePartialOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "reduce_partial", .view = true};
  const OpInfo& info() const override { return kInfo; }
  std::optional<Shape> AliasStrides(const Tensor& input,
                                    ShapeView strides) const override;
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// Performs the pending reductions of `a` if it is distributed; otherwise
/// returns `a` itself. Each op that does not commute with a pending reduction
/// performs it by itself. Code that uses a value more than once, also in
/// backward, calls ReducePartial first, so that the ranks reduce once. The
/// gradient is reduced, too. The result may share memory with `a` and must not
/// be written.
Tensor ReducePartial(const Tensor& a);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_REDUCE_PARTIAL_H_
