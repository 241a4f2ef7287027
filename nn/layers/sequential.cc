// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/sequential.h"

#include <utility>

namespace crosshatch::nn {

TensorList Sequential::ForwardImpl(TensorSpan inputs) {
  TensorList values(inputs.begin(), inputs.end());
  for (const auto& [name, module] : children()) {
    values = module->Call(std::move(values));
  }
  return values;
}

}  // namespace crosshatch::nn
