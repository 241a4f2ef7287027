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
/// \name Taking apart
/// Of a distributed tensor each part is split as `a` is. Where `dim` itself is
/// split, ranks take from each other what they lack of their share of each
/// part, by one all-to-all a part; SplitUnits needs none.
/// @{

/// Views of `sizes[i]` elements each along `dim`; the sizes sum to all.
TensorList Split(const Tensor& a, ShapeView sizes, int64_t dim);
/// `chunks` views along `dim`, of ceil(size / chunks) elements each; a short
/// last one and then empty ones where that does not divide.
TensorList Chunk(const Tensor& a, int64_t chunks, int64_t dim);
/// Each index of `dim`, which goes away, as a view.
TensorList Unbind(const Tensor& a, int64_t dim);
/// @}

/// \name Parts that alternate unit by unit
/// How to merge projections so that tensor parallelism moves nothing: with n
/// heads of width w, rows (or features) of q, k and v as q0 k0 v0 q1 k1 v1 ...,
/// split in units of 3 w.
/// @{

/// From `parts`, of n * units[i] elements along `dim` each, one tensor of
/// n * (sum of units): unit 0 of each part, then unit 1 of each, and so on.
Tensor MergeUnits(TensorSpan parts, ShapeView units, int64_t dim);
/// The parts again. Of a distributed tensor whose dim is split between whole
/// sums of units (Linear's out_unit) nothing moves, and each part is split
/// between its own units.
TensorList SplitUnits(const Tensor& a, ShapeView units, int64_t dim);
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CAT_H_
