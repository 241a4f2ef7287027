// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_FLOAT8_H_
#define CROSSHATCH_TENSOR_OPS_FLOAT8_H_

/// \file
/// Float8: scales, scaled conversions, scaled products, and a linear layer with
/// dynamic scaling. docs/float8.md explains them.
///
/// A scale is a tensor of no dims, for the whole tensor, or has the dims of the
/// values, 1 along those that share a scale.

#include <memory>

#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/matmul.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// (amax of f32) -> the scale that maps amax to the largest value of `dtype`,
/// and its reciprocal, as Float8ScaleArgs.
class Float8ScaleOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "float8_scale",
                                   .no_gradient = "scales are constants"};
  Float8ScaleOp(DType dtype, bool power_of_two)
      : dtype(dtype), power_of_two(power_of_two) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override {
    AppendTo(key, dtype, power_of_two);
  }

  const DType dtype;
  const bool power_of_two;
};

/// (x, scale) -> x * scale in float8 of `dtype`, saturated. x is f32, bf16 or
/// f16. Without a gradient.
class Float8CastOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"float8_cast"};
  explicit Float8CastOp(DType dtype) : dtype(dtype) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, dtype); }

  const DType dtype;
};

/// (a, b, inverse_a, inverse_b) -> the product of a * inverse_a and b *
/// inverse_b, of `dtype`. a and b are float8, at most one of them e5m2; b has
/// two dims unless the batch is summed. The inverse scales are both of the
/// whole tensor, or a's has 1 along k and b's, too. Without a gradient.
class ScaledMatMulOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {.name = "scaled_matmul",
                                   .no_gradient = "use Float8Linear"};
  ScaledMatMulOp(const MatMulSpec& spec, DType dtype)
      : spec(spec), dtype(dtype) {}
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override;
  void AppendKey(OpKey& key) const override { AppendTo(key, spec, dtype); }

  const MatMulSpec spec;
  const DType dtype;
};

/// Values in float8 and the factor that restores what they stand for.
struct Float8Values {
  Tensor values;
  Tensor inverse_scale;
};

/// Converts `x` with the scale at which its largest magnitude becomes the
/// largest value of `dtype`. For a distributed tensor, that of all ranks.
/// \param dims of x that share a scale; empty: all.
/// \param power_of_two rounds scales down to powers of two, which change no
///     mantissa.
Float8Values ToFloat8(const Tensor& x, DType dtype, ShapeView dims = {},
                      bool power_of_two = false);

Tensor ScaledMatMul(const Float8Values& a, const Float8Values& b,
                    const MatMulSpec& spec, DType dtype);

/// How Float8Linear scales, with the names of torchao's recipes.
enum class Float8Recipe : uint8_t {
  /// One scale per tensor: e4m3 for inputs and weights, e5m2 for gradients.
  kTensorwise,
  /// One scale, a power of two, per row of each operand of a product, along the
  /// dim that the product sums over; e4m3 throughout.
  kRowwise,
};

/// Returns x w^T + bias, multiplied in float8, as are both gradients. Scales
/// are computed from the values of the call. The result and the gradients have
/// x's dtype.
/// \param x [..., in] of f32, bf16 or f16
/// \param w [out, in] of a floating dtype or, with kTensorwise, e4m3
/// \param w_inverse_scale of an e4m3 w; else undefined
/// \param bias [out], or undefined
Tensor Float8Linear(const Tensor& x, const Tensor& w,
                    const Tensor& w_inverse_scale, const Tensor& bias,
                    Float8Recipe recipe);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_FLOAT8_H_
