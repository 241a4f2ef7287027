// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/group_norm.h"

#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/layers/wider.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/norm.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"

namespace crosshatch::nn {

GroupNorm::GroupNorm(int64_t groups, int64_t channels,
                     const GroupNormOptions& options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  CH_CHECK(groups > 0 && channels % groups == 0)
      << "GroupNorm of " << channels << " channels in " << groups << " groups";
  if (!options.affine) return;
  weight_ =
      std::make_shared<Parameter>(Shape{channels}, kFloat32, init::Constant(1));
  bias_ = std::make_shared<Parameter>(Shape{channels}, kFloat32, Initializer{});
  RegisterParameter("weight", weight_);
  RegisterParameter("bias", bias_);
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
