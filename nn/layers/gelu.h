// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_GELU_H_
#define CROSSHATCH_NN_LAYERS_GELU_H_

#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch::nn {

enum class GeluForm : uint8_t {
  kExact,  ///< x P(X <= x), X standard normal: torch's default.
  kTanh,   ///< GPT-2's approximation of it.
};

/// The Gaussian error linear unit, element by element.
class Gelu final : public Module {
 public:
  explicit Gelu(GeluForm form = GeluForm::kExact) : form_(form) {}

  GeluForm form() const { return form_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    CH_CHECK_EQ(inputs.size(), 1u) << "gelu";
    return {form_ == GeluForm::kTanh ? crosshatch::Gelu(inputs[0])
                                     : GeluExact(inputs[0])};
  }

 private:
  const GeluForm form_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_GELU_H_
