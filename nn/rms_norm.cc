// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/rms_norm.h"

#include <memory>

#include "crosshatch/base/check.h"
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
  return {crosshatch::RmsNorm(inputs[0], weight_->Get(), eps_)};
}

}  // namespace crosshatch::nn
