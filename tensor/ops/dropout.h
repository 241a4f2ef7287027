// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_DROPOUT_H_
#define CROSSHATCH_TENSOR_OPS_DROPOUT_H_

/// \file
/// Dropout by element. Whether an element is dropped is a function of a key, a
/// step and the element's index in the global tensor, and of nothing else. So
/// every mesh and layout drops the same elements, and no mask is kept: the
/// gradient passes through the same op with the same key.

#include <cstdint>
#include <memory>
#include <utility>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (x) -> x / (1 - p) if the element's random number is at least p, otherwise
/// 0.
class DropoutOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"dropout"};
  /// \param current_step if set, the step of each replay of a captured call
  DropoutOp(double p, uint64_t key, uint64_t step, int64_t first_row,
            std::shared_ptr<const uint64_t> current_step = nullptr)
      : p(p),
        key(key),
        step(step),
        first_row(first_row),
        current_step(std::move(current_step)) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  /// Runs on an x that starts at `offsets` in a tensor of `global_sizes`, which
  /// starts at first_row.
  Tensor ForwardPart(const Tensor& x, ShapeView offsets,
                     ShapeView global_sizes) const;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  // Nothing is appended to the key: the distribution of a call does not depend
  // on the attributes, which change in each step.

  const double p;
  const uint64_t key;
  const uint64_t step;
  const int64_t first_row;
  const std::shared_ptr<const uint64_t> current_step;
};

/// \param x floating point
/// \param p the fraction of elements that is dropped, in [0, 1]
/// \param key of a stream of random numbers; RandomKeyOf (dtensor/random.h)
///     computes it from a seed and a name
/// \param step distinguishes several draws with one key
/// \param first_row the index of x's first row in a longer tensor, whose
///     elements have the random numbers; at least 0
Tensor Dropout(const Tensor& x, double p, uint64_t key, uint64_t step,
               int64_t first_row = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_DROPOUT_H_
