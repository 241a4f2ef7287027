// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/sequential.h"

#include <utility>

#include "crosshatch/base/check.h"

namespace crosshatch::nn {

Module& Sequential::operator[](size_t i) const {
  CH_CHECK(i < size()) << "module " << i << " of the " << size() << " in "
                       << *label();
  return *children()[i].second;
}

TensorList Sequential::ForwardImpl(TensorSpan inputs) {
  TensorList values(inputs.begin(), inputs.end());
  for (const auto& [name, module] : children()) {
    values = module->Call(std::move(values));
  }
  return values;
}

}  // namespace crosshatch::nn
