// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_H_

/// \file
/// Attention in blocks: no [T, T] matrix is ever made. Once differentiable.

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (q [B, T, Hq, D], k, v [B, S, Hkv, D]) -> (out [B, T, Hq, D],
/// logsumexp [B, Hq, T] of f32, or f64 where q is). Hkv divides Hq: query head
/// h uses key head h / (Hq / Hkv). With `causal` query i sees keys
/// j <= i + S - T.
class AttentionOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"attention"};
  AttentionOp(double scale, bool causal) : scale(scale), causal(causal) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const double scale;
  const bool causal;
};

/// (grad, q, k, v, out, logsumexp) -> (dq, dk, dv).
class AttentionBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"attention_backward"};
  AttentionBackwardOp(double scale, bool causal)
      : scale(scale), causal(causal) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const double scale;
  const bool causal;
};

/// softmax(scale q k^T, causally masked) v for each head.
/// \param q [B, T, Hq, D]
/// \param k [B, S, Hkv, D], as `v`
/// \returns [B, T, Hq, D]
Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale);
/// The same without a mask.
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 double scale);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_H_
