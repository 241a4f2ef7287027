// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_POINTWISE_H_
#define CROSSHATCH_TENSOR_OPS_POINTWISE_H_

/// \file
/// Ops that compute each element independently. Operands of two-operand ops
/// broadcast by numpy's rule and have one dtype: nothing is promoted; ToDType
/// (cast.h) converts. in_place.h has the forms that write into an operand.

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// out = kind(a), with `scalar` for the kinds that take one.
class UnaryPointwiseOp final : public Op {
 public:
  explicit UnaryPointwiseOp(UnaryOp kind, double scalar = 0)
      : kind(kind), scalar(scalar) {}
  /// The identity of a kind: "neg", "mul_scalar", ...
  static const OpInfo& InfoOf(UnaryOp kind);

  const OpInfo& info() const override { return InfoOf(kind); }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, scalar); }

  const UnaryOp kind;
  const double scalar;
};

/// out = kind(a, b); a + alpha * b and a - alpha * b for kAdd and kSub.
/// Comparisons give bool.
class BinaryPointwiseOp final : public Op {
 public:
  explicit BinaryPointwiseOp(BinaryOp kind, double alpha = 1)
      : kind(kind), alpha(alpha) {}
  /// The identity of a kind: "add", "less", "silu_backward", ...
  static const OpInfo& InfoOf(BinaryOp kind);

  const OpInfo& info() const override { return InfoOf(kind); }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, alpha); }

  const BinaryOp kind;
  const double alpha;
};

/// (condition, a, b): condition ? a : b.
class WhereOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"where"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// (gate, up) of equal sizes: silu(gate) * up.
class SwiGluOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"swiglu"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

/// (grad, gate, up) -> (dgate, dup) of SwiGluOp, in one pass.
class SwiGluBackwardOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"swiglu_backward"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
};

/// (like) -> a tensor of the same sizes and dtype, filled with `value`. If
/// `like` is partial, the result is replicated.
class FullLikeOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"full_like"};
  explicit FullLikeOp(double value) : value(value) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  /// Returns null: no gradient flows to its input.
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, value); }

  const double value;
};

/// a + alpha * b.
Tensor Add(const Tensor& a, const Tensor& b, double alpha = 1);
/// a - alpha * b.
Tensor Sub(const Tensor& a, const Tensor& b, double alpha = 1);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);
/// Returns a ^ b; 0 ^ 0 is 1. The derivative by b includes the logarithm of a.
/// If the power is constant, the derivative is zero: by a if b = 0, by b if a =
/// 0 and b >= 0.
Tensor Pow(const Tensor& a, const Tensor& b);
/// Returns the larger; NaN if either is NaN. Equal operands share the gradient
/// evenly; if one is NaN, each gets all of it.
Tensor Maximum(const Tensor& a, const Tensor& b);
Tensor Minimum(const Tensor& a, const Tensor& b);

Tensor Add(const Tensor& a, double b);
Tensor Sub(const Tensor& a, double b);
Tensor Sub(double a, const Tensor& b);
Tensor Mul(const Tensor& a, double b);
Tensor Div(const Tensor& a, double b);
Tensor Div(double a, const Tensor& b);
Tensor Pow(const Tensor& a, double exponent);
/// Returns the larger. If equal, the gradient is zero; if a is NaN, all of it.
Tensor Maximum(const Tensor& a, double b);
Tensor Minimum(const Tensor& a, double b);

Tensor Neg(const Tensor& a);
Tensor Abs(const Tensor& a);
/// -1, 0 or 1.
Tensor Sign(const Tensor& a);
Tensor Square(const Tensor& a);
Tensor Exp(const Tensor& a);
Tensor Log(const Tensor& a);
Tensor Sqrt(const Tensor& a);
Tensor Rsqrt(const Tensor& a);
Tensor Reciprocal(const Tensor& a);
Tensor Tanh(const Tensor& a);
Tensor Sigmoid(const Tensor& a);
Tensor Relu(const Tensor& a);
/// a * sigmoid(a).
Tensor Silu(const Tensor& a);
/// The error function.
Tensor Erf(const Tensor& a);
/// The tanh form.
Tensor Gelu(const Tensor& a);
/// Returns a P(X <= a) for a standard normal X, with erf.
Tensor GeluExact(const Tensor& a);

Tensor Equal(const Tensor& a, const Tensor& b);
Tensor NotEqual(const Tensor& a, const Tensor& b);
Tensor Less(const Tensor& a, const Tensor& b);
Tensor LessEqual(const Tensor& a, const Tensor& b);
Tensor Greater(const Tensor& a, const Tensor& b);
Tensor GreaterEqual(const Tensor& a, const Tensor& b);
/// For bool tensors.
Tensor LogicalAnd(const Tensor& a, const Tensor& b);
Tensor LogicalOr(const Tensor& a, const Tensor& b);
Tensor LogicalNot(const Tensor& a);

/// condition ? a : b; `condition` is bool.
Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b);

/// Returns silu(gate) * up in one pass; backward recomputes from both.
Tensor SwiGlu(const Tensor& gate, const Tensor& up);

Tensor FullLike(const Tensor& like, double value);
Tensor ZerosLike(const Tensor& like);
Tensor OnesLike(const Tensor& like);

/// \name Operators
/// a + 2 * b is Add(a, Mul(b, 2)). (x[0] is a method of Tensor.)
/// @{
inline Tensor operator+(const Tensor& a, const Tensor& b) { return Add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return Mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return Div(a, b); }

inline Tensor operator+(const Tensor& a, double b) { return Add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return Mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return Div(a, b); }

inline Tensor operator+(double a, const Tensor& b) { return Add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return Mul(b, a); }
inline Tensor operator/(double a, const Tensor& b) { return Div(a, b); }

inline Tensor operator-(const Tensor& a) { return Neg(a); }
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_POINTWISE_H_
