// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/gelu.h"

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/pointwise.h"

namespace crosshatch::nn {

TensorList Gelu::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "gelu";
  return {form_ == GeluForm::kTanh ? crosshatch::Gelu(inputs[0])
                                   : GeluExact(inputs[0])};
}

}  // namespace crosshatch::nn
