// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/norm.h"

#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch::nn {
namespace {

// Returns the wider floating-point dtype, or `b` if both have the same size.
DType WiderOf(DType a, DType b) { return SizeOf(a) > SizeOf(b) ? a : b; }

}  // namespace

RmsNorm::RmsNorm(int64_t dim, double eps)
    : weight_(AddParameter("weight", {dim}, init::Constant(1))), eps_(eps) {}

TensorList RmsNorm::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "rms_norm";
  const Tensor& x = inputs[0];
  const Tensor& weight = weight_->Get();
  if (!IsFloatingPoint(x.dtype())) {
    return {crosshatch::RmsNorm(x, weight, eps_)};
  }
  const DType wider = WiderOf(x.dtype(), weight.dtype());
  return {ToDType(
      crosshatch::RmsNorm(ToDType(x, wider), ToDType(weight, wider), eps_),
      x.dtype())};
}

LayerNorm::LayerNorm(int64_t dim, const LayerNormOptions& options)
    : dim_(dim), eps_(options.eps) {
  if (options.weight) {
    weight_ = AddParameter("weight", {dim}, init::Constant(1));
  }
  if (options.bias) bias_ = AddParameter("bias", {dim}, {});
}

TensorList LayerNorm::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "layer_norm";
  const Tensor& x = inputs[0];
  CH_CHECK(x.ndim() > 0 && x.size(-1) == dim_ && IsFloatingPoint(x.dtype()))
      << "a LayerNorm of " << dim_ << " takes floating point of [..., " << dim_
      << "], not " << x.Describe();
  DType dtype = x.dtype();
  for (const auto& parameter : {weight_, bias_}) {
    if (parameter != nullptr) dtype = WiderOf(dtype, parameter->Get().dtype());
  }
  const auto get = [&](const std::shared_ptr<Parameter>& parameter) {
    return parameter == nullptr ? Tensor() : ToDType(parameter->Get(), dtype);
  };
  return {ToDType(
      crosshatch::LayerNorm(ToDType(x, dtype), get(weight_), get(bias_), eps_),
      x.dtype())};
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels,
                     const GroupNormOptions& options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  CH_CHECK(groups > 0 && channels % groups == 0)
      << "GroupNorm of " << channels << " channels in " << groups << " groups";
  if (!options.affine) return;
  weight_ = AddParameter("weight", {channels}, init::Constant(1));
  bias_ = AddParameter("bias", {channels}, {});
}

TensorList GroupNorm::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "group_norm";
  const Tensor& x = inputs[0];
  CH_CHECK(x.ndim() > 1 && x.size(1) == channels_ && IsFloatingPoint(x.dtype()))
      << "a GroupNorm of " << channels_ << " channels takes floating point of "
      << "[N, " << channels_ << ", ...], not " << x.Describe();
  const DType dtype = weight_ == nullptr
                          ? x.dtype()
                          : WiderOf(x.dtype(), weight_->Get().dtype());
  int64_t width = channels_ / groups_;
  for (int d = 2; d < x.ndim(); ++d) width *= x.size(d);
  const Tensor groups = Reshape(ToDType(x, dtype), {x.size(0), groups_, width});
  Tensor y = Reshape(crosshatch::LayerNorm(groups, Tensor(), Tensor(), eps_),
                     x.sizes());
  if (weight_ != nullptr) {
    Shape of_channels(static_cast<size_t>(x.ndim() - 1), 1);
    of_channels[0] = channels_;
    const auto get = [&](const Parameter& parameter) {
      return Reshape(ToDType(parameter.Get(), dtype), of_channels);
    };
    y = Add(Mul(y, get(*weight_)), get(*bias_));
  }
  return {ToDType(y, x.dtype())};
}

}  // namespace crosshatch::nn
