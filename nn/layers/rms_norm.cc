// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/rms_norm.h"

#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/layers/wider.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/norm.h"

namespace crosshatch::nn {

RmsNorm::RmsNorm(int64_t dim, double eps)
    : weight_(std::make_shared<Parameter>(
          Shape{dim}, kFloat32, Initializer{Initializer::Kind::kOnes})),
      eps_(eps) {
  RegisterParameter("weight", weight_);
}

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

}  // namespace crosshatch::nn
