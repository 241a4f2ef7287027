// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_H_

/// \file
/// Attention in blocks. It creates no [T, S] matrix and skips blocks that are
/// fully masked. Once differentiable.
///
/// Letters: B batch, T queries, S keys, Hq query heads, Hkv key heads, which
/// divide them, D width of a head. Query i has position o = i + S - T among the
/// keys: keys end where queries end.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Dropout of probabilities by element, as Dropout (dropout.h). Whether one is
/// dropped is a function of key, step and its index in [rows, heads, T, S] of
/// the global batch, so every mesh, recomputation and gradient drops the same
/// ones. nn::Dropout::ForAttention creates one in a module.
struct AttentionDropout {
  double p = 0;  ///< The share that is dropped, in [0, 1].
  uint64_t key = 0;
  uint64_t step = 0;
  /// Rows of the global batch before those of q.
  int64_t first_row = 0;
  /// Heads before those of q, and the total number of heads; 0: q has all. For
  /// plain tensors with a rank's own heads. For distributed ones they are
  /// known.
  int64_t first_head = 0;
  int64_t heads = 0;
};

/// The keys that a query attends to, and what is added to its scores. All
/// conditions apply. A query without keys gives zeros and contributes to no
/// gradient. Of the tensors here only a floating-point mask has a gradient.
struct AttentionOptions {
  /// The factor of the products of queries and keys; 1 / sqrt(D) if unset.
  std::optional<double> scale = {};
  /// Only keys j <= o.
  bool causal = false;
  /// If not 0, only keys j > o - window (sliding-window attention). With
  /// `causal` these are the last `window` keys up to the query's own. At least
  /// 0.
  int64_t window = 0;
  /// Broadcastable to [B, Hq, T, S]. Bool: attend where it is true. Floating
  /// point, of any dtype: added to the scores. If it requires a gradient,
  /// attention computes it (attention_mask_grad.h).
  Tensor mask = {};
  /// i32 [B, T, 2], or [1, T, 2] for all rows: the begin and end of each
  /// query's keys, begin <= j < end. For packed documents: DocumentKeys
  /// (documents.h).
  Tensor key_ranges = {};
  /// f32 [Hq]: slope * |o - j| is subtracted from the scores (ALiBi;
  /// AlibiSlopes).
  Tensor slopes = {};
  AttentionDropout dropout = {};
};

/// The arguments of a call besides tensors.
struct AttentionAttributes {
  double scale = 1;
  bool causal = true;
  int64_t window = 0;
  AttentionDropout dropout;

  /// Returns the attributes of a part with these offsets in rows and heads and
  /// this number of heads.
  AttentionAttributes OfPart(int64_t rows, int64_t heads,
                             int64_t all_heads) const;
  void AppendKey(OpKey& key) const;
};

/// (q [B, T, Hq, D], k, v [B, S, Hkv, D], and, if there are any, mask,
/// key_ranges and slopes, each of which may be undefined) -> (out [B, T, Hq,
/// D], logsumexp [B, Hq, T] of f32, or f64 if q is f64). Query head h uses key
/// head h / (Hq / Hkv). The mask has four dims; those of size 1 are broadcast.
class AttentionOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "attention",
                                   .optional_inputs = 7 << 3};
  explicit AttentionOp(const AttentionAttributes& attributes)
      : attributes(attributes) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { attributes.AppendKey(key); }

  const AttentionAttributes attributes;
};

/// (grad, q, k, v, out, logsumexp, and mask, key_ranges and slopes as for
/// AttentionOp) -> (dq, dk, dv).
class AttentionBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "attention_backward",
                                   .optional_inputs = 7 << 6};
  explicit AttentionBackwardOp(const AttentionAttributes& attributes)
      : attributes(attributes) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { attributes.AppendKey(key); }

  const AttentionAttributes attributes;
};

/// Returns softmax(scale q k^T) v for each head, with the scores changed as in
/// AttentionOptions.
/// \param q [B, T, Hq, D]
/// \param k [B, S, Hkv, D], as `v`
/// \returns [B, T, Hq, D]
/// \checks shapes and dtypes, and that the slopes require no gradient
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options);

/// \name Without any other options
/// @{
template <typename T>
requires std::is_arithmetic_v<T> Tensor Attention(const Tensor& q,
                                                  const Tensor& k,
                                                  const Tensor& v, T scale) {
  return Attention(q, k, v,
                   AttentionOptions{.scale = static_cast<double>(scale)});
}
Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                       double scale, int64_t window = 0);
/// @}

/// Returns the slopes of ALiBi (Press et al., 2022) for `heads` heads, f32
/// [heads]. If `heads` is a power of two: 2^(-8 i / heads), i = 1 .. heads.
/// Otherwise the slopes for the next lower power of two, then every second one
/// for the next higher.
/// \param heads at least 0; of all ranks together.
Tensor AlibiSlopes(int64_t heads);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_H_
