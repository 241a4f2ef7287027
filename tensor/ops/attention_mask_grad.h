// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_MASK_GRAD_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_MASK_GRAD_H_

/// \file
/// The gradient of a mask that attention adds to its scores: of biases that are
/// learned by relative position, say.

#include <cstdint>
#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Which key heads a rank's query heads use, where it has more key heads than
/// those.
struct AttentionKeyHeads {
  /// Query heads before those of q, counted from the first of the key heads.
  int64_t first_query = 0;
  /// Query heads to a key head; 0: those of q by those of k.
  int64_t group = 0;
};

/// (grad, q, k, v, mask, key_ranges, slopes) -> (dmask), inputs as
/// AttentionBackwardOp's: what the sum of grad * out gains by the mask. The
/// mask is there and of floating point; key_ranges and slopes may be undefined.
///
/// It is made of other ops, for one head of one row of the batch after the
/// other, so that beside the mask there are a few [T, S] at a time; in float32
/// (float64 for float64), and summed in the order of rows and heads where the
/// mask is broadcast over them.
class AttentionMaskGradOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "attention_mask_grad",
                                   .optional_inputs = 3 << 5};
  explicit AttentionMaskGradOp(const AttentionAttributes& attributes,
                               const AttentionKeyHeads& key_heads = {})
      : attributes(attributes), key_heads(key_heads) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  /// Fails a check: attention is differentiable once.
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override {
    attributes.AppendKey(key);
    key.push_back(key_heads.first_query);
    key.push_back(key_heads.group);
  }

  const AttentionAttributes attributes;
  const AttentionKeyHeads key_heads;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_ATTENTION_MASK_GRAD_H_
