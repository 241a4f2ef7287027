// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CROSS_ENTROPY_H_
#define CROSSHATCH_TENSOR_OPS_CROSS_ENTROPY_H_

/// \file
/// Cross entropy of logits against class indices (i32, i64 or u16). It computes
/// in f32 (f64 for f64), which is the dtype of losses and statistics. Once
/// differentiable.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (logits [..., V], targets [...]) -> (loss [...], logsumexp [...]): the loss
/// of each row, 0 if the target is `ignore_index`.
class CrossEntropyOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"cross_entropy"};
  explicit CrossEntropyOp(int64_t ignore_index) : ignore_index(ignore_index) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, ignore_index); }

  const int64_t ignore_index;
};

/// (grad [...], logits [..., V], targets [...], logsumexp [...]) -> dlogits.
/// The logits may be the classes [first_class, first_class + V) of a larger
/// number, with the logsumexp over all.
class CrossEntropyBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "cross_entropy_backward",
                                   .no_gradient =
                                       "cross entropy is differentiable once; "
                                       "run Backward without create_graph"};
  CrossEntropyBackwardOp(int64_t ignore_index, int64_t first_class)
      : ignore_index(ignore_index), first_class(first_class) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, ignore_index, first_class);
  }

  const int64_t ignore_index;
  const int64_t first_class;
};

/// The parts of the loss if logits hold the classes [first_class, first_class +
/// V) of a larger number: (logits [..., V], targets [...], row_max [...]) ->
/// (sum_exp [...], picked [...]), the sum of exp(logit - row_max), and the
/// target's logit if it is among these classes, otherwise 0. row_max is over
/// all `classes` classes. A target must be one of them or ignored, checked.
/// Then loss = log(sum of sum_exp) + row_max - sum of picked over the parts,
/// and log(...) + row_max is the logsumexp. Below autograd: not differentiable
/// by itself.
class CrossEntropyPartOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"cross_entropy_part"};
  CrossEntropyPartOp(int64_t ignore_index, int64_t first_class, int64_t classes)
      : ignore_index(ignore_index),
        first_class(first_class),
        classes(classes) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, ignore_index, first_class, classes);
  }

  const int64_t ignore_index;
  const int64_t first_class;
  const int64_t classes;
};

/// (targets [...]) -> the number that are not `ignore_index`, of dtype `dtype`
/// and no dims.
class CountTargetsOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"count_targets"};
  CountTargetsOp(int64_t ignore_index, DType dtype)
      : ignore_index(ignore_index), dtype(dtype) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, ignore_index, dtype);
  }

  const int64_t ignore_index;
  const DType dtype;
};

struct CrossEntropyOptions {
  enum class Reduction : uint8_t {
    kMean,  ///< Over the targets that are not ignored; NaN if there are none.
    kSum,
    kNone,
  };
  Reduction reduction = Reduction::kMean;
  /// Rows with this target have no loss and no gradient.
  int64_t ignore_index = -100;
};

/// \param logits [..., V]
/// \param targets [...], in [0, V) or ignore_index
/// \returns a tensor of no dims; [...] for kNone
Tensor CrossEntropy(const Tensor& logits, const Tensor& targets,
                    const CrossEntropyOptions& options = {});

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CROSS_ENTROPY_H_
