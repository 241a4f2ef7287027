// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_
#define CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_

/// \file
/// Matrix products of groups of rows, each group with its own matrix: the
/// tokens of experts.
///
/// Group g has the rows [offsets[g], offsets[g + 1]), possibly none. Offsets
/// are host numbers from 0 to the number of rows. Each group is one product
/// without copies, on any device that multiplies matrices. Operands have one
/// floating dtype.

#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// \name The global sizes of the results, with checks of the operands
/// @{
Shape GroupedMatMulSizes(ShapeView x, ShapeView w, ShapeView offsets,
                         bool transpose_w);
Shape GroupedOuterSizes(ShapeView a, ShapeView b, ShapeView offsets);
/// @}

/// (x, w) -> the products of all groups.
class GroupedMatMulOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"grouped_matmul"};
  GroupedMatMulOp(ShapeView offsets, bool transpose_w)
      : offsets(offsets.begin(), offsets.end()), transpose_w(transpose_w) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const Shape offsets;
  const bool transpose_w;
};

/// (a, b) -> the sums of outer products of all groups.
class GroupedOuterOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"grouped_outer"};
  explicit GroupedOuterOp(ShapeView offsets)
      : offsets(offsets.begin(), offsets.end()) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override;

  const Shape offsets;
};

/// out[r] = x[r] w[g] for the rows r of group g.
/// \param x [rows, in]
/// \param w [groups, in, out], or with `transpose_w` [groups, out, in]
/// \returns [rows, out]
Tensor GroupedMatMul(const Tensor& x, const Tensor& w, ShapeView offsets,
                     bool transpose_w = false);

/// out[g] = the sum of a[r]^T b[r] over the rows r of group g, zeros for an
/// empty group: the gradient of GroupedMatMul's weights.
/// \param a [rows, m]
/// \param b [rows, n]
/// \returns [groups, m, n]
Tensor GroupedOuter(const Tensor& a, const Tensor& b, ShapeView offsets);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_
