// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_OPTIM_TESTUTIL_H_
#define CROSSHATCH_NN_OPTIM_OPTIM_TESTUTIL_H_

/// \file
/// Parameters and gradients for tests of optimizers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/creation.h"

namespace crosshatch::nn {

/// Values in (-1, 1) without a pattern.
inline std::vector<float> Values(int64_t count, int seed) {
  std::vector<float> values;
  uint32_t state = 12345u + 777u * static_cast<uint32_t>(seed);
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
  }
  return values;
}

inline Tensor FromVector(ShapeView sizes, const std::vector<float>& values) {
  return FromValues<float>(sizes, absl::MakeConstSpan(values));
}

inline std::unique_ptr<Parameter> MakeParameter(const std::string& name,
                                                const Tensor& data) {
  auto parameter = std::make_unique<Parameter>(
      data.sizes(), kFloat32, Initializer{Initializer::Kind::kZeros});
  parameter->set_name(name);
  parameter->set_data(data);
  return parameter;
}

inline std::unique_ptr<Parameter> MakeParameter(
    const std::string& name, const std::vector<float>& values) {
  return MakeParameter(
      name, FromVector({static_cast<int64_t>(values.size())}, values));
}

inline constexpr AdamWOptions kOptions = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_OPTIM_TESTUTIL_H_
