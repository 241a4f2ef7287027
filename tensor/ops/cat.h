// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CAT_H_
#define CROSSHATCH_TENSOR_OPS_CAT_H_

/// \file
/// Concatenates, splits and pads tensors.

#include <cstdint>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (a, b, ...) -> their concatenation along `dim`. One dtype; all other sizes
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
  void AppendKey(OpKey& key) const override { AppendTo(key, dim); }

  const int dim;
};

Tensor Cat(TensorSpan tensors, int64_t dim);
/// Concatenates along a new dim before dim `dim`.
Tensor Stack(TensorSpan tensors, int64_t dim);
/// Returns `times[i]` concatenated copies along dim i, in memory of its own. If
/// there are more times than dims, leading dims are added.
Tensor Repeat(const Tensor& a, ShapeView times);
/// \name Splitting
/// Each part of a distributed tensor is split as `a` is. If `dim` itself is
/// split, ranks receive from each other what they lack of their share of each
/// part, by one all-to-all per part; SplitUnits needs none.
/// @{

/// Returns views of `sizes[i]` elements each along `dim`. The sizes sum to the
/// dim's.
TensorList Split(const Tensor& a, ShapeView sizes, int64_t dim);
/// Returns `chunks` views along `dim`, of ceil(size / chunks) elements each.
/// The last ones may be short or empty.
TensorList Chunk(const Tensor& a, int64_t chunks, int64_t dim);
/// Returns a view of each index of `dim`, without that dim.
TensorList Unbind(const Tensor& a, int64_t dim);
/// @}

/// \name Parts that alternate unit by unit
/// They merge projections so that tensor parallelism moves nothing: with n
/// heads of width w, the rows (or features) of q, k and v are q0 k0 v0 q1 k1 v1
/// ..., split in units of 3 w.
/// @{

/// Merges `parts`, of n * units[i] elements along `dim` each, into one tensor
/// of n * (sum of units): unit 0 of each part, then unit 1 of each, and so on.
Tensor MergeUnits(TensorSpan parts, ShapeView units, int64_t dim);
/// Returns the parts again. If a distributed tensor's dim is split between
/// whole sums of units (tp::ColwiseOptions::unit), nothing moves, and each part
/// is split between its own units.
TensorList SplitUnits(const Tensor& a, ShapeView units, int64_t dim);
/// @}

/// (a) -> a with `before` and `after` zeros put around dim `dim`.
class PadOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"pad"};
  /// \pre 0 <= dim < ndim; before, after >= 0
  PadOp(int dim, int64_t before, int64_t after)
      : dim(dim), before(before), after(after) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, dim, before, after);
  }

  const int dim;
  const int64_t before;
  const int64_t after;
};

/// Puts `before` and `after` zeros around dim `dim`.
Tensor Pad(const Tensor& a, int64_t dim, int64_t before, int64_t after);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CAT_H_
