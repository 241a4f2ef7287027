// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/rotary_table.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

RotaryTable::RotaryTable(int64_t head_dim, double theta)
    : head_dim_(head_dim), theta_(theta) {
  CH_CHECK_EQ(head_dim % 2, 0) << "rotary table";
}

const Tensor& RotaryTable::Cos(int64_t length) {
  Prepare(length);
  return cos_;
}

const Tensor& RotaryTable::Sin(int64_t length) {
  Prepare(length);
  return sin_;
}

void RotaryTable::Prepare(int64_t length) {
  if (cos_.defined() && cos_.size(0) == length) return;
  const int64_t half = head_dim_ / 2;
  const NoGrad no_grad;
  const Shape sizes = {length, half};
  // A dry run of sequences beyond this machine's memory has no values to make.
  if (RankContext::Current().dry_run()) {
    cos_ = Empty(sizes);
    sin_ = Empty(sizes);
    return;
  }
  std::vector<float> cos;
  std::vector<float> sin;
  cos.reserve(static_cast<size_t>(length * half));
  sin.reserve(static_cast<size_t>(length * half));
  for (int64_t position = 0; position < length; ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const float exponent =
          static_cast<float>(2 * i) / static_cast<float>(head_dim_);
      const float frequency =
          1.0f / static_cast<float>(std::pow(theta_, double{exponent}));
      const float angle = static_cast<float>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(double{angle})));
      sin.push_back(static_cast<float>(std::sin(double{angle})));
    }
  }
  cos_ = FromValues<float>(sizes, absl::MakeConstSpan(cos));
  sin_ = FromValues<float>(sizes, absl::MakeConstSpan(sin));
}

}  // namespace crosshatch::nn
