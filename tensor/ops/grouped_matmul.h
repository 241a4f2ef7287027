// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_
#define CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_

/// \file
/// Products of rows that come in groups, each group by a matrix of its own: the
/// tokens of experts.
///
/// Group g has the rows [offsets[g], offsets[g + 1]) and may have none; offsets
/// are numbers of the host, begin with 0 and end with the number of rows. Each
/// group is one product on memory where it lies, on any device that multiplies
/// matrices. Operands have one floating dtype.

#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// \name The (global) sizes of the results; they check that there is one.
/// @{
Shape GroupedMatMulSizes(ShapeView x, ShapeView w, ShapeView offsets,
                         bool transpose_w);
Shape GroupedOuterSizes(ShapeView a, ShapeView b, ShapeView offsets);
/// @}

/// (x, w) -> the product of each group.
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

/// (a, b) -> the sums of outer products of each group.
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

/// out[g] = the sum of a[r]^T b[r] over the rows r of group g, zeros for a
/// group of none: the gradient of GroupedMatMul's weights.
/// \param a [rows, m]
/// \param b [rows, n]
/// \returns [groups, m, n]
Tensor GroupedOuter(const Tensor& a, const Tensor& b, ShapeView offsets);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_GROUPED_MATMUL_H_
