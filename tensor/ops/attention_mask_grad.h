// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_ATTENTION_MASK_GRAD_H_
#define CROSSHATCH_TENSOR_OPS_ATTENTION_MASK_GRAD_H_

/// \file
/// The gradient of a mask that attention adds to its scores, for example of
/// learned relative position biases.

#include <cstdint>
#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

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
/// It is composed of other ops, for one head of one row of the batch after
/// another, so that besides the mask only a few [T, S] exist at a time. It
/// computes in float32 (float64 for float64) and sums in the order of rows and
/// heads if the mask is broadcast over them.
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
