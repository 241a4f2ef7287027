// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CAST_H_
#define CROSSHATCH_TENSOR_OPS_CAST_H_

/// \file
/// Copies: to another dtype, to contiguous memory, to independent memory.

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
  void AppendKey(OpKey& key) const override { AppendTo(key, dtype); }

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

/// Converts the dtype. Float to integer truncates towards zero; conversion to
/// bool tests for != 0; to float8 it saturates, from f32, bf16 or f16. Returns
/// `a` itself if it has that dtype.
Tensor ToDType(const Tensor& a, DType dtype);
/// Returns `a` itself if it is contiguous, for a distributed tensor by its
/// global strides; otherwise a Clone.
Tensor Contiguous(const Tensor& a);
/// Returns a contiguous copy in memory of its own.
Tensor Clone(const Tensor& a);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CAST_H_
