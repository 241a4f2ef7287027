// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_LAYER_NORM_H_
#define CROSSHATCH_NN_LAYERS_LAYER_NORM_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  bool weight = true;
  bool bias = true;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias over the last dim, of size
/// `dim`: one kernel each way. Where x and the weight are of different dtypes
/// it computes in the wider one and gives x's.
class LayerNorm final : public Module {
 public:
  explicit LayerNorm(int64_t dim, const LayerNormOptions& options = {});

  const char* type_name() const override { return "LayerNorm"; }

  /// [dim], ones at first; null if there is none.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [dim], zeros at first; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }
  double eps() const { return eps_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const int64_t dim_;
  const double eps_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_LAYER_NORM_H_
