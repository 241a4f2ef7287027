// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/layer_norm.h"

#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/layers/wider.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/norm.h"

namespace crosshatch::nn {

LayerNorm::LayerNorm(int64_t dim, const LayerNormOptions& options)
    : dim_(dim), eps_(options.eps) {
  if (options.weight) {
    weight_ =
        std::make_shared<Parameter>(Shape{dim}, kFloat32, init::Constant(1));
    RegisterParameter("weight", weight_);
  }
  if (options.bias) {
    bias_ = std::make_shared<Parameter>(Shape{dim}, kFloat32, Initializer{});
    RegisterParameter("bias", bias_);
  }
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

}  // namespace crosshatch::nn
