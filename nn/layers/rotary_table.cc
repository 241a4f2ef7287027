// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/rotary_table.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

RotaryTable::RotaryTable(int64_t head_dim, double theta, RopeScaling scaling)
    : head_dim_(head_dim), theta_(theta), scaling_(std::move(scaling)) {
  CH_CHECK_EQ(head_dim % 2, 0) << "rotary table";
  CH_CHECK_OK(scaling_.Validate(head_dim, theta));
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
  // A dry run may use a sequence that exceeds this machine's memory.
  if (RankContext::Current().dry_run()) {
    cos_ = Empty(sizes);
    sin_ = Empty(sizes);
    return;
  }
  std::vector<float> cos;
  std::vector<float> sin;
  cos.reserve(static_cast<size_t>(length * half));
  sin.reserve(static_cast<size_t>(length * half));
  const std::vector<float> frequencies =
      RotaryFrequencies(head_dim_, theta_, scaling_, length);
  const auto factor = static_cast<float>(scaling_.attention_factor);
  for (int64_t position = 0; position < length; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(double{angle})) * factor);
      sin.push_back(static_cast<float>(std::sin(double{angle})) * factor);
    }
  }
  cos_ = FromValues<float>(sizes, absl::MakeConstSpan(cos));
  sin_ = FromValues<float>(sizes, absl::MakeConstSpan(sin));
}

}  // namespace crosshatch::nn
