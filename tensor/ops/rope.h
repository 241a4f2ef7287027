// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ROPE_H_
#define CROSSHATCH_TENSOR_OPS_ROPE_H_

/// \file
/// Rotary position embedding.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (x [B, T, H, D], cos, sin [T, D/2] or [B, T, D/2] of f32) -> x with each
/// pair (x[i], x[i + D/2]) rotated by its angle; `inverse` rotates back. cos
/// and sin have no gradient.
class RopeOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"rope"};
  explicit RopeOp(bool inverse) : inverse(inverse) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const bool inverse;
};

/// Rotates in Hugging Face's rotate_half form: out[i] = x[i] cos - x[i + D/2]
/// sin, out[i + D/2] = x[i + D/2] cos + x[i] sin.
/// \param x [B, T, H, D], D even
/// \param cos [T, D/2], as `sin`, f32; or [B, T, D/2], if tokens of one column
///     have different positions (Embedding(positions, cos) of packed documents)
Tensor ApplyRope(const Tensor& x, const Tensor& cos, const Tensor& sin);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ROPE_H_
