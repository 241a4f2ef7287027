// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_H_

/// \file
/// Attention in blocks, rotary position embedding, and the keys of packed
/// documents. Attention creates no [T, S] matrix and skips blocks that are
/// fully masked. It is once differentiable.
///
/// Letters: B batch, T queries, S keys, Hq query heads, Hkv key heads, which
/// divide them, D width of a head. Query i has position o = i + S - T among the
/// keys: keys end where queries end.

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

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
  /// attention computes it (AttentionMaskGradOp).
  Tensor mask = {};
  /// i32 [B, T, 2], or [1, T, 2] for all rows: the begin and end of each
  /// query's keys, begin <= j < end. For packed documents: DocumentKeys.
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
  void AppendKey(OpKey& key) const override { AppendTo(key, attributes); }

  const AttentionAttributes attributes;
};

/// (grad, q, k, v, out, logsumexp, and mask, key_ranges and slopes as for
/// AttentionOp) -> (dq, dk, dv).
class AttentionBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "attention_backward",
                                   .optional_inputs = 7 << 6,
                                   .no_gradient =
                                       "attention is differentiable once; run "
                                       "Backward without create_graph"};
  explicit AttentionBackwardOp(const AttentionAttributes& attributes)
      : attributes(attributes) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, attributes); }

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

/// The key heads that a rank's query heads use, if it has more key heads than
/// those.
struct AttentionKeyHeads {
  /// The offset of q's heads, counted from the first of the key heads.
  int64_t first_query = 0;
  /// Query heads per key head; 0: those of q divided by those of k.
  int64_t group = 0;
};

/// (grad, q, k, v, mask, key_ranges, slopes) -> (dmask), with the inputs of
/// AttentionBackwardOp: the derivative of sum(grad * out) by the mask. The mask
/// is defined and has a floating-point dtype; key_ranges and slopes may be
/// undefined.
///
/// Such a mask is, for example, a learned relative position bias. The op is
/// composed of other ops, for one head of one row of the batch after
/// another, so that besides the mask only a few [T, S] exist at a time. It
/// computes in float32 (float64 for float64) and sums in the order of rows and
/// heads if the mask is broadcast over them.
class AttentionMaskGradOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "attention_mask_grad",
                                   .optional_inputs = 3 << 5,
                                   .no_gradient =
                                       "attention is differentiable once; run "
                                       "Backward without create_graph"};
  explicit AttentionMaskGradOp(const AttentionAttributes& attributes,
                               const AttentionKeyHeads& key_heads = {})
      : attributes(attributes), key_heads(key_heads) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, attributes, key_heads.first_query, key_heads.group);
  }

  const AttentionAttributes attributes;
  const AttentionKeyHeads key_heads;
};

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
  void AppendKey(OpKey& key) const override { AppendTo(key, inverse); }

  const bool inverse;
};

/// Rotates in Hugging Face's rotate_half form: out[i] = x[i] cos - x[i + D/2]
/// sin, out[i + D/2] = x[i + D/2] cos + x[i] sin.
/// \param x [B, T, H, D], D even
/// \param cos [T, D/2], as `sin`, f32; or [B, T, D/2], if tokens of one column
///     have different positions (Embedding(positions, cos) of packed documents)
Tensor ApplyRope(const Tensor& x, const Tensor& cos, const Tensor& sin);

/// Lengths of the documents that are packed into each row, in order, possibly
/// 0. The rest of a row is padding.
using DocumentLengths = std::vector<std::vector<int64_t>>;

/// Returns the keys of each token's own document, i32 [rows, length, 2]; none
/// for padding. `causal` of the options applies in addition.
/// \checks that the documents of a row have at most `length` tokens
Tensor DocumentKeys(const DocumentLengths& lengths, int64_t length);
/// Does the same for queries and keys that are packed separately, like those of
/// a decoder and an encoder: document i of a row of queries attends to document
/// i of the row of keys. Not for causal or windowed attention, which counts
/// from the ends of rows.
/// \param length of a row of queries
/// \checks also that both have equally many documents
Tensor DocumentKeys(const DocumentLengths& query_lengths,
                    const DocumentLengths& key_lengths, int64_t length);

/// Returns each token's position in its document, from 0, i32 [rows, length]; 0
/// for padding.
/// \checks as DocumentKeys
Tensor DocumentPositions(const DocumentLengths& lengths, int64_t length);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_H_
