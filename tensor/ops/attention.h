// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_H_

/// \file
/// Attention in blocks: no [T, S] matrix is ever made, and blocks of which
/// nothing is seen are skipped. Once differentiable.
///
/// Letters: B batch, T queries, S keys, Hq query heads, Hkv key heads, which
/// divide them, D width of a head. Query i stands at key o = i + S - T: keys
/// end where queries end.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Dropout of probabilities by element, as Dropout's (dropout.h): what becomes
/// of one follows from key, step and its index in [rows, heads, T, S] of the
/// global batch, so that every mesh, recomputation and gradient drops the same.
/// nn::Dropout::ForAttention makes one in a module.
struct AttentionDropout {
  double p = 0;  ///< The share that is dropped, in [0, 1].
  uint64_t key = 0;
  uint64_t step = 0;
  /// Rows of the global batch before those of q.
  int64_t first_row = 0;
  /// Heads before those of q, and of how many; 0: q has all. For plain tensors
  /// of a rank's own heads; distributed ones know.
  int64_t first_head = 0;
  int64_t heads = 0;
};

/// Which keys a query sees, and what is added to its scores. All conditions
/// hold together. A query that sees nothing gives zeros and takes part in no
/// gradient. Of the tensors here a floating-point mask has a gradient.
struct AttentionOptions {
  /// What products of queries and keys are multiplied with; 1 / sqrt(D) if
  /// unset.
  std::optional<double> scale = {};
  /// Keys j <= o.
  bool causal = false;
  /// Not 0: keys j > o - window: of a causal attention the last `window` up to
  /// the query's own (sliding-window attention), else those that follow as
  /// well. At least 0.
  int64_t window = 0;
  /// Broadcastable to [B, Hq, T, S]. Bool: keys where it is true. Floating
  /// point, of any dtype: added to the scores. One that requires a gradient
  /// gets it (attention_mask_grad.h).
  Tensor mask = {};
  /// i32 [B, T, 2], or [1, T, 2] for all rows: keys begin <= j < end of each
  /// query's begin and end. Of packed documents: DocumentKeys (documents.h).
  Tensor key_ranges = {};
  /// f32 [Hq]: slope * |o - j| is taken off the scores (ALiBi; AlibiSlopes).
  Tensor slopes = {};
  AttentionDropout dropout = {};
};

/// What is in a call besides tensors.
struct AttentionAttributes {
  double scale = 1;
  bool causal = true;
  int64_t window = 0;
  AttentionDropout dropout;

  /// Those of a part that begins so many rows and heads later, of so many
  /// heads.
  AttentionAttributes OfPart(int64_t rows, int64_t heads,
                             int64_t all_heads) const;
  void AppendKey(OpKey& key) const;
};

/// (q [B, T, Hq, D], k, v [B, S, Hkv, D], and if there are any of them mask,
/// key_ranges and slopes, each of which may be undefined) -> (out
/// [B, T, Hq, D], logsumexp [B, Hq, T] of f32, or f64 where q is). Query head h
/// uses key head h / (Hq / Hkv). The mask has four dims, of which those of size
/// 1 are broadcast.
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

/// (grad, q, k, v, out, logsumexp, and as for AttentionOp mask, key_ranges and
/// slopes) -> (dq, dk, dv).
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

/// softmax(scale q k^T, as the options say) v for each head.
/// \param q [B, T, Hq, D]
/// \param k [B, S, Hkv, D], as `v`
/// \returns [B, T, Hq, D]
/// \checks shapes and dtypes, and that the slopes require no gradient
Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options);

/// \name Without options but these
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

/// The slopes of ALiBi (Press et al., 2022) for `heads` heads, f32 [heads]: of
/// a power of two the powers 2^(-8 i / heads), i = 1 .. heads; of other numbers
/// those of the power of two below and then every second of the one above.
/// \param heads at least 0, of all ranks
Tensor AlibiSlopes(int64_t heads);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_H_
