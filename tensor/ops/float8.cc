// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/float8.h"

#include <cstdint>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/launch.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/ops/saving_node.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

/// cuBLASLt's operands begin at a multiple of 16 bytes.
Tensor AlignedDense(const Tensor& t) {
  const Tensor dense = internal::Dense(t);
  const auto address = reinterpret_cast<uintptr_t>(dense.raw_data());
  return address % 16 == 0 ? dense : Clone(dense);
}

void CheckScale(const char* what, const Tensor& scale, int64_t count,
                bool by_row) {
  CH_CHECK(
      scale.dtype() == kFloat32 &&
      (by_row ? scale.ndim() > 0 && scale.numel() == count : scale.ndim() == 0))
      << ScaledMatMulOp::kInfo.name << ": the inverse scale of " << what
      << " is " << scale.Describe() << "; it must be f32, of no dims or, for "
      << "both operands, have " << count << " elements";
}

class Float8LinearNode final : public SavingNode<2> {
 public:
  static constexpr OpInfo kInfo = {"float8_linear"};

  Float8LinearNode(const Tensor& x, const Tensor& w, Float8Recipe recipe)
      : SavingNode(kInfo), recipe_(recipe), x_dtype_(x.dtype()) {
    Save(1, w);
    edges().push_back(GradEdge(x));
    edges().push_back(GradEdge(w));
  }
  /// Saves x, as values if the gradient uses the scale of forward.
  void SaveInput(const Tensor& x, const Float8Values& values) {
    if (recipe_ == Float8Recipe::kTensorwise) {
      Save(0, values.values);
      x_inverse_scale_ = values.inverse_scale;
    } else {
      Save(0, x);
    }
  }
  void set_w_inverse_scale(const Tensor& scale) { w_inverse_scale_ = scale; }

  void Backward(TensorSpan output_grads, GradientSlots& slots) override {
    CH_CHECK(!Recording())
        << kInfo.name << " has no gradient of its gradient; use a linear layer "
        << "that is not float8";
    if (recipe_ == Float8Recipe::kTensorwise) {
      Tensorwise(output_grads[0], slots);
    } else {
      Rowwise(output_grads[0], slots);
    }
  }

 private:
  static MatMulSpec OfWeight(const Tensor& g) {
    return {.transpose_a = true, .sum_batch = g.ndim() > 2};
  }

  void Tensorwise(const Tensor& g, GradientSlots& slots) {
    const Float8Values g8 = ToFloat8(g, kFloat8E5M2);
    if (slots.Needed(0)) {
      const Tensor w = Saved(1);
      const Float8Values w8 = IsFloat8(w.dtype())
                                  ? Float8Values{w, w_inverse_scale_}
                                  : ToFloat8(w, kFloat8E4M3);
      slots.Put(0, ScaledMatMul(g8, w8, {}, x_dtype_));
    }
    if (slots.Needed(1)) {
      slots.Put(1, ScaledMatMul(g8, {Saved(0), x_inverse_scale_}, OfWeight(g),
                                x_dtype_));
    }
  }

  void Rowwise(const Tensor& g, GradientSlots& slots) {
    if (slots.Needed(0)) {
      const Float8Values g8 = ToFloat8(g, kFloat8E4M3, {g.ndim() - 1}, true);
      const Float8Values w8 = ToFloat8(Saved(1), kFloat8E4M3, {0}, true);
      slots.Put(0, ScaledMatMul(g8, w8, {}, x_dtype_));
    }
    if (slots.Needed(1)) {
      Shape tokens;
      for (int d = 0; d < g.ndim() - 1; ++d) tokens.push_back(d);
      const Float8Values g8 = ToFloat8(g, kFloat8E4M3, tokens, true);
      const Float8Values x8 = ToFloat8(Saved(0), kFloat8E4M3, tokens, true);
      slots.Put(1, ScaledMatMul(g8, x8, OfWeight(g), x_dtype_));
    }
  }

  const Float8Recipe recipe_;
  const DType x_dtype_;
  Tensor x_inverse_scale_;
  Tensor w_inverse_scale_;
};

}  // namespace

TensorList Float8ScaleOp::Forward(TensorSpan inputs) const {
  const Tensor& amax = inputs[0];
  CH_CHECK(IsFloat8(dtype) && amax.dtype() == kFloat32)
      << kInfo.name << " to " << Name(dtype) << " for amax " << amax.Describe()
      << ": of float8, from f32";
  const Tensor dense = internal::Dense(amax);
  TensorList outputs = {Empty(amax.sizes(), kFloat32),
                        Empty(amax.sizes(), kFloat32)};
  Float8ScaleArgs args;
  args.count = amax.numel();
  args.amax = static_cast<const float*>(dense.raw_data());
  args.scale = static_cast<float*>(outputs[0].raw_data());
  args.inverse = static_cast<float*>(outputs[1].raw_data());
  args.largest = dtype == kFloat8E4M3 ? Float8E4M3::kMax : Float8E5M2::kMax;
  args.power_of_two = power_of_two;
  internal::Launch(&KernelTable::float8_scale, args);
  return outputs;
}

TensorList Float8CastOp::Forward(TensorSpan inputs) const {
  const Tensor& x = inputs[0];
  const Tensor& scale = inputs[1];
  CH_CHECK(IsFloat8(dtype) && IsFloatingPoint(x.dtype()) &&
           x.dtype() != kFloat64 && scale.dtype() == kFloat32 &&
           BroadcastShapes(x.sizes(), scale.sizes(), kInfo.name) == x.sizes())
      << kInfo.name << " of " << x.Describe() << " by the scale "
      << scale.Describe() << " to " << Name(dtype)
      << ": f32, bf16 or f16 by f32 to float8";
  Tensor out = Empty(x.sizes(), dtype);
  internal::LaunchFloat8Convert(out, x, scale);
  return {std::move(out)};
}

TensorList ScaledMatMulOp::Forward(TensorSpan inputs) const {
  const Tensor& inverse_a = inputs[2];
  const Tensor& inverse_b = inputs[3];
  const Shape sizes = MatMulSizes(inputs[0].sizes(), inputs[1].sizes(), spec);
  CH_CHECK(
      IsFloat8(inputs[0].dtype()) && IsFloat8(inputs[1].dtype()) &&
      (inputs[0].dtype() == kFloat8E4M3 || inputs[1].dtype() == kFloat8E4M3) &&
      IsFloatingPoint(dtype) && dtype != kFloat64)
      << kInfo.name << " of " << inputs[0].Describe() << " and "
      << inputs[1].Describe() << " to " << Name(dtype)
      << ": float8, at most one e5m2, to f32, bf16 or f16";
  CH_CHECK(spec.sum_batch ? spec.transpose_a && !spec.transpose_b
                          : inputs[1].ndim() == 2 &&
                                (inputs[0].ndim() == 2 || !spec.transpose_a))
      << kInfo.name << " of " << inputs[0].Describe() << " and "
      << inputs[1].Describe() << ": a batch of rows by one matrix, or a^T b "
      << "summed over the batch";
  const Tensor a = AlignedDense(inputs[0]);
  const Tensor b = AlignedDense(inputs[1]);
  const int64_t a_cols = a.size(-1);
  const int64_t b_cols = b.size(-1);
  const int64_t a_rows =
      a_cols == 0 ? NumElements(internal::LeadingSizes(ShapeView(a.sizes())))
                  : a.numel() / a_cols;
  const int64_t b_rows =
      b_cols == 0 ? NumElements(internal::LeadingSizes(ShapeView(b.sizes())))
                  : b.numel() / b_cols;
  Tensor out = Empty(sizes, dtype);
  ScaledMatMulArgs args;
  args.m = spec.transpose_a ? a_cols : a_rows;
  args.k = spec.transpose_a ? a_rows : a_cols;
  args.n = spec.transpose_b ? b_rows : b_cols;
  args.a.data = a.raw_data();
  args.a.row_stride = spec.transpose_a ? 1 : a_cols;
  args.a.col_stride = spec.transpose_a ? a_cols : 1;
  args.b.data = b.raw_data();
  args.b.row_stride = spec.transpose_b ? 1 : b_cols;
  args.b.col_stride = spec.transpose_b ? b_cols : 1;
  args.out.data = out.raw_data();
  args.out.row_stride = args.n;
  args.out.col_stride = 1;
  args.a_dtype = a.dtype();
  args.b_dtype = b.dtype();
  args.out_dtype = dtype;
  args.scales_by_row = inverse_a.ndim() > 0;
  CheckScale("a", inverse_a, args.m, args.scales_by_row);
  CheckScale("b", inverse_b, args.n, args.scales_by_row);
  const Tensor dense_a = internal::Dense(inverse_a);
  const Tensor dense_b = internal::Dense(inverse_b);
  args.scale_a = static_cast<const float*>(dense_a.raw_data());
  args.scale_b = static_cast<const float*>(dense_b.raw_data());
  internal::LaunchWithWorkspace(&KernelTable::scaled_matmul_workspace_bytes,
                                &KernelTable::scaled_matmul, args);
  return {std::move(out)};
}

Float8Values ToFloat8(const Tensor& x, DType dtype, ShapeView dims,
                      bool power_of_two) {
  const NoGrad no_grad;
  const Tensor amax =
      ToDType(Max(Abs(x), dims, /*keepdim=*/!dims.empty()), kFloat32);
  const TensorList scales =
      Apply(Float8ScaleOp(dtype, power_of_two), {&amax, 1});
  return {Apply1(Float8CastOp(dtype), {x, scales[0]}), scales[1]};
}

Tensor ScaledMatMul(const Float8Values& a, const Float8Values& b,
                    const MatMulSpec& spec, DType dtype) {
  const NoGrad no_grad;
  return Apply1(ScaledMatMulOp(spec, dtype),
                {a.values, b.values, a.inverse_scale, b.inverse_scale});
}

Tensor Float8Linear(const Tensor& x, const Tensor& w,
                    const Tensor& w_inverse_scale, const Tensor& bias,
                    Float8Recipe recipe) {
  const bool tensorwise = recipe == Float8Recipe::kTensorwise;
  const bool is_float8 = IsFloat8(w.dtype());
  CH_CHECK(w.ndim() == 2 && is_float8 == w_inverse_scale.defined() &&
           (!is_float8 || (tensorwise && w.dtype() == kFloat8E4M3)))
      << "float8 linear by " << w.Describe()
      << (w_inverse_scale.defined() ? " with" : " without")
      << " a scale: a weight [out, in] of a floating dtype without one or, "
      << "scaled by tensor, of f8e4m3 with one";
  const Float8Values x8 = tensorwise
                              ? ToFloat8(x, kFloat8E4M3)
                              : ToFloat8(x, kFloat8E4M3, {x.ndim() - 1}, true);
  const Float8Values w8 = is_float8 ? Float8Values{w.Detach(), w_inverse_scale}
                          : tensorwise ? ToFloat8(w, kFloat8E4M3)
                                       : ToFloat8(w, kFloat8E4M3, {1}, true);
  Tensor y = ScaledMatMul(x8, w8, {.transpose_b = true}, x.dtype());
  const bool needs_grad = x.requires_grad() || w.requires_grad();
  if (needs_grad && RankContext::Current().grad_enabled()) {
    const auto node = std::make_shared<Float8LinearNode>(x, w, recipe);
    node->SaveInput(x, x8);
    node->set_w_inverse_scale(w_inverse_scale);
    GraphTies::TieOutputs(node, {&y, 1});
  }
  // y has no other users, so the bias is added in place.
  if (bias.defined()) AddInPlace(y, ToDType(bias, y.dtype()));
  return y;
}

}  // namespace crosshatch
