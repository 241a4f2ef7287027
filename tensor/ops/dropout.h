// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_DROPOUT_H_
#define CROSSHATCH_TENSOR_OPS_DROPOUT_H_

/// \file
/// Dropout by element: what becomes of an element follows from a key, a step
/// and the element's index in the (global) tensor, and from nothing else. So
/// every mesh and layout drops the same elements, and no mask is kept: the
/// gradient goes through the same op with the same key.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (x) -> x / (1 - p) where the element's random number is at least p, else 0.
class DropoutOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"dropout"};
  DropoutOp(double p, uint64_t key, uint64_t step, int64_t first_row)
      : p(p), key(key), step(step), first_row(first_row) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  /// Of x that starts at `offsets` in a tensor of `global_sizes`, which starts
  /// at first_row.
  Tensor ForwardPart(const Tensor& x, ShapeView offsets,
                     ShapeView global_sizes) const;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  // Nothing is appended to the key: how a call is distributed does not depend
  // on the attributes, of which each step has others.

  const double p;
  const uint64_t key;
  const uint64_t step;
  const int64_t first_row;
};

/// \param x floating point
/// \param p the share of elements that is dropped, in [0, 1]
/// \param key of a stream of random numbers: RandomKeyOf (dtensor/random.h)
///     makes it of a seed and a name
/// \param step tells apart several draws with one key
/// \param first_row where dim 0 of x starts in a longer tensor, whose elements
///     the random numbers are those of; at least 0
Tensor Dropout(const Tensor& x, double p, uint64_t key, uint64_t step,
               int64_t first_row = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_DROPOUT_H_
