// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/linear.h"

#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/matmul.h"

namespace crosshatch::nn {

Linear::Linear(int64_t in_features, int64_t out_features,
               const LinearOptions& options)
    : weight_(std::make_shared<Parameter>(
          Shape{out_features, in_features}, kFloat32,
          Initializer{Initializer::Kind::kNormal, options.stddev})),
      out_unit_(options.out_unit),
      in_unit_(options.in_unit) {
  CH_CHECK_EQ(out_features % out_unit_, 0) << "linear";
  CH_CHECK_EQ(in_features % in_unit_, 0) << "linear";
  RegisterParameter("weight", weight_);
  if (options.bias) {
    bias_ = std::make_shared<Parameter>(Shape{out_features}, kFloat32,
                                        Initializer{Initializer::Kind::kZeros});
    RegisterParameter("bias", bias_);
  }
}

Linear::Linear(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  CH_CHECK_EQ(weight_->data().ndim(), 2) << "linear";
  RegisterParameter("weight", weight_);
}

TensorList Linear::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "linear";
  return {crosshatch::Linear(inputs[0], weight_->Get(),
                             bias_ == nullptr ? Tensor() : bias_->Get())};
}

}  // namespace crosshatch::nn
