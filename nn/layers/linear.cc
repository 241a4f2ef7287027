// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/linear.h"

#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/matmul.h"

namespace crosshatch::nn {

Linear::Linear(const LinearOptions& options) {
  CH_CHECK(options.in > 0 && options.out > 0)
      << "nn::Linear: LinearOptions::in " << options.in << " and out "
      << options.out << " are the features, above 0";
  Init(options.in, options.out, options);
}

Linear::Linear(int64_t in_features, int64_t out_features,
               const LinearOptions& options) {
  CH_CHECK(options.in == 0 && options.out == 0)
      << "nn::Linear: of " << in_features << " and " << out_features
      << " features, and of LinearOptions::in " << options.in << " and out "
      << options.out << "; give either";
  Init(in_features, out_features, options);
}

void Linear::Init(int64_t in_features, int64_t out_features,
                  const LinearOptions& options) {
  weight_ = AddParameter("weight", {out_features, in_features},
                         init::Normal(options.stddev));
  if (options.bias) bias_ = AddParameter("bias", {out_features}, {});
}

Linear::Linear(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  CH_CHECK(weight_ != nullptr) << "nn::Linear: the weight is null";
  CH_CHECK_EQ(weight_->data().ndim(), 2)
      << "nn::Linear: the weight is [out, in]";
  RegisterParameter("weight", weight_);
}

TensorList Linear::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "linear";
  const Tensor& x = inputs[0];
  const Tensor& weight = weight_->Get();
  if (float8_.has_value()) {
    // FSDP may have gathered the weight in float8, with its scale.
    const TensorList& scales = weight_->gathered_extras();
    const Tensor bias = bias_ == nullptr ? Tensor() : bias_->Get();
    const Tensor scale =
        scales.empty() ? Tensor() : ReplicatedLike(scales[0], weight);
    const bool keeps_dtype =
        IsFloat8(weight.dtype()) || !IsFloatingPoint(x.dtype());
    return {ToDType(Float8Linear(keeps_dtype ? x : ToDType(x, weight.dtype()),
                                 weight, scale, bias, *float8_),
                    x.dtype())};
  }
  const Tensor bias =
      bias_ == nullptr ? Tensor() : ToDType(bias_->Get(), weight.dtype());
  CH_CHECK(IsFloatingPoint(x.dtype()) || !IsFloatingPoint(weight.dtype()))
      << "linear of " << x.Describe() << " by a weight of " << weight.Describe()
      << ": it takes floating point; ids go through an "
      << "Embedding, ToDType makes numbers of integers";
  if (!IsFloatingPoint(x.dtype())) {
    return {crosshatch::Linear(x, weight, bias)};
  }
  return {ToDType(crosshatch::Linear(ToDType(x, weight.dtype()), weight, bias),
                  x.dtype())};
}

}  // namespace crosshatch::nn
