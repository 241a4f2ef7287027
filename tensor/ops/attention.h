// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_H_

/// \file
/// Attention in blocks: no [T, T] matrix is ever made. Once differentiable.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Which keys a query sees, of S keys that end where the T queries end.
struct AttentionMask {
  /// Query i sees keys j <= i + S - T.
  bool causal = true;
  /// Not 0: of those the last `window` up to its own, j > i + S - T - window
  /// (sliding-window attention). At least 0.
  int64_t window = 0;
};

/// (q [B, T, Hq, D], k, v [B, S, Hkv, D]) -> (out [B, T, Hq, D],
/// logsumexp [B, Hq, T] of f32, or f64 where q is). Hkv divides Hq: query head
/// h uses key head h / (Hq / Hkv).
class AttentionOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"attention"};
  AttentionOp(double scale, AttentionMask mask) : scale(scale), mask(mask) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const double scale;
  const AttentionMask mask;
};

/// (grad, q, k, v, out, logsumexp) -> (dq, dk, dv).
class AttentionBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"attention_backward"};
  AttentionBackwardOp(double scale, AttentionMask mask)
      : scale(scale), mask(mask) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const double scale;
  const AttentionMask mask;
};

/// softmax(scale q k^T, causally masked) v for each head.
/// \param q [B, T, Hq, D]
/// \param k [B, S, Hkv, D], as `v`
/// \param window see AttentionMask
/// \returns [B, T, Hq, D]
Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, int64_t window = 0);
/// The same without a mask.
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 double scale);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_H_
