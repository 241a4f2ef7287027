// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_MATMUL_H_
#define CROSSHATCH_TENSOR_OPS_MATMUL_H_

/// \file
/// Matrix products, also of groups of rows with a matrix each. Operands have
/// one floating dtype.

#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// How a product treats the last two dims and the batch dims before them.
///
/// With a' = a, or a with its last two dims swapped (transpose_a), and b'
/// alike:
///
/// - out[..., m, n] = sum over k of a'[..., m, k] * b'[..., k, n]. Batch dims
///   broadcast by numpy's rule; one operand often has none.
/// - sum_batch: sums over the batch dims, too, which are equal in both: out[m,
///   n] = sum over ... and k. The gradient of a weight is such a product: with
///   transpose_a, grad[..., t, out]^T x[..., t, in] gives [out, in].
struct MatMulSpec {
  bool transpose_a = false;
  bool transpose_b = false;
  bool sum_batch = false;

  void AppendKey(OpKey& key) const {
    AppendTo(key, transpose_a, transpose_b, sum_batch);
  }
  friend bool operator==(const MatMulSpec&, const MatMulSpec&) = default;
};

/// Returns the global sizes of the product; checks the operands.
Shape MatMulSizes(ShapeView a, ShapeView b, const MatMulSpec& spec);

/// (a, b) -> the product.
class MatMulOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"matmul"};
  explicit MatMulOp(const MatMulSpec& spec) : spec(spec) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, spec); }

  const MatMulSpec spec;
};

/// (dst, a, b): dst = or += the product. dst has its sizes, and its dtype, or
/// f32 if that is a 16-bit float. Not differentiable.
class MatMulIntoOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {
      .name = "matmul_into", .in_place = true, .no_gradient = "use MatMul"};
  MatMulIntoOp(const MatMulSpec& spec, bool accumulate)
      : spec(spec), accumulate(accumulate) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, spec, accumulate); }

  const MatMulSpec spec;
  const bool accumulate;
};

Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulSpec& spec);
Tensor MatMul(const Tensor& a, const Tensor& b, bool transpose_a = false,
              bool transpose_b = false);

/// In NoGrad, or on tensors that require no gradient.
void MatMulInto(const Tensor& dst, const Tensor& a, const Tensor& b,
                const MatMulSpec& spec, bool accumulate);

/// Returns the dot product of two vectors.
/// \param a, b [n]
/// \returns a tensor of no dims
Tensor Dot(const Tensor& a, const Tensor& b);
/// \param a [..., m, n]
/// \param v [n]
/// \returns [..., m]
Tensor MatVec(const Tensor& a, const Tensor& v);

struct AddMMOptions {
  double beta = 1;
  double alpha = 1;
};
/// Returns beta c + alpha a b. With beta = 0 the elements of c are not read, so
/// that NaN in them does not propagate, and their gradients are zeros.
/// \param c broadcasts to [m, n]
/// \param a, b [m, k] and [k, n]
Tensor AddMM(const Tensor& c, const Tensor& a, const Tensor& b,
             const AddMMOptions& options = {});
/// As AddMM for each matrix of a batch.
/// \param c broadcasts to [batch, m, n]
/// \param a, b [batch, m, k] and [batch, k, n]
Tensor BAddBMM(const Tensor& c, const Tensor& a, const Tensor& b,
               const AddMMOptions& options = {});

/// (x, w, bias): x w^T + bias of local tensors in one kernel. bias has x's
/// dtype and is contiguous.
class LinearOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"linear"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// Returns x w^T + bias, in one kernel if LinearOp supports the operands.
/// \param x [..., in]
/// \param w [out, in]
/// \param bias [out], or undefined
/// \returns [..., out]
Tensor Linear(const Tensor& x, const Tensor& w, const Tensor& bias = Tensor());

/// \name Products of groups of rows, each with its own matrix
/// The rows are tokens of experts, for example. Group g has the rows
/// [offsets[g], offsets[g + 1]), possibly none. Offsets are host numbers from 0
/// to the number of rows. Each group is one product without copies.
/// @{

/// Returns the global sizes of the result; checks the operands.
Shape GroupedMatMulSizes(ShapeView x, ShapeView w, ShapeView offsets,
                         bool transpose_w);
Shape GroupedOuterSizes(ShapeView a, ShapeView b, ShapeView offsets);

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
  void AppendKey(OpKey& key) const override {
    AppendTo(key, transpose_w, offsets);
  }

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
  void AppendKey(OpKey& key) const override { AppendTo(key, offsets); }

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
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_MATMUL_H_
