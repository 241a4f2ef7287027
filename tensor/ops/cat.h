// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CAT_H_
#define CROSSHATCH_TENSOR_OPS_CAT_H_

/// \file
/// Joining tensors and taking them apart.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a, b, ...) -> one after the other along `dim`. One dtype; all other sizes
/// equal.
class CatOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"cat"};
  /// \pre 0 <= dim < ndim
  explicit CatOp(int dim) : dim(dim) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const int dim;
};

Tensor Cat(TensorSpan tensors, int64_t dim);
/// Along a new dim before dim `dim`.
Tensor Stack(TensorSpan tensors, int64_t dim);
/// `times[i]` copies along dim i one after the other, in memory of its own;
/// more times than dims add leading dims.
Tensor Repeat(const Tensor& a, ShapeView times);
/// Views of `sizes[i]` elements each along `dim`; the sizes sum to all.
TensorList Split(const Tensor& a, ShapeView sizes, int64_t dim);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CAT_H_
