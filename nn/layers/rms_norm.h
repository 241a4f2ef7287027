// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_RMS_NORM_H_
#define CROSSHATCH_NN_LAYERS_RMS_NORM_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim, of size `dim`. Where x
/// and the weight are of different dtypes (a norm kept in float32 in a model
/// that computes in bfloat16) it computes in the wider one and gives x's.
class RmsNorm final : public Module {
 public:
  RmsNorm(int64_t dim, double eps);

  const char* type_name() const override { return "RmsNorm"; }

  /// [dim], ones at first.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  double eps() const { return eps_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  std::shared_ptr<Parameter> weight_;
  double eps_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_RMS_NORM_H_
