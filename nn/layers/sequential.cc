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

std::vector<Flow> Sequential::flows() const {
  std::vector<Flow> flows;
  const Module* before = nullptr;
  for (const auto& [name, module] : children()) {
    if (before != nullptr) flows.push_back({before, module});
    before = module;
  }
  return flows;
}

}  // namespace crosshatch::nn
