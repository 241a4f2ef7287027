// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CAST_H_
#define CROSSHATCH_TENSOR_OPS_CAST_H_

/// \file
/// Copies: to another dtype, to dense memory, to memory of one's own.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a) -> a contiguous copy of dtype `dtype`.
class CastOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"cast"};
  explicit CastOp(DType dtype) : dtype(dtype) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const DType dtype;
};

/// (a) -> a contiguous copy.
class CloneOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"clone"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// Float to integer truncates towards zero; anything to bool asks for != 0.
/// `a` itself where it has that dtype.
Tensor ToDType(const Tensor& a, DType dtype);
/// `a` itself where it is contiguous, by the strides of the whole if it is
/// distributed; else a Clone.
Tensor Contiguous(const Tensor& a);
/// A contiguous copy in memory of its own.
Tensor Clone(const Tensor& a);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CAST_H_
