// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"

namespace crosshatch::nn {

double Schedule::At(int64_t step) const {
  CH_CHECK_OK(Check());
  CH_CHECK_GE(step, 0) << "steps of a schedule are counted from 0";
  if (step < warmup) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (shape == Shape::kConstant) return peak;
  if (step >= steps) return last;
  const double done =
      static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  const double left = shape == Shape::kLinear
                          ? 1 - done
                          : (1 + std::cos(std::numbers::pi * done)) / 2;
  return last + (peak - last) * left;
}

absl::Status Schedule::Check() const {
  const auto refused = [](const auto&... text) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of learning rates: ", text...));
  };
  for (const double rate : {peak, last}) {
    if (!(rate >= 0) || !std::isfinite(rate)) {
      return refused("a rate is a number of at least 0, not ", rate);
    }
  }
  if (warmup < 0) return refused("a warmup of ", warmup, " steps");
  if (shape != Shape::kConstant && steps < std::max<int64_t>(warmup, 1)) {
    return refused("its ", steps, " steps are to be at least the warmup's ",
                   warmup, ", and at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule::Shape> ParseScheduleShape(const std::string& name) {
  if (name == "constant") return Schedule::Shape::kConstant;
  if (name == "linear") return Schedule::Shape::kLinear;
  if (name == "cosine") return Schedule::Shape::kCosine;
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" is none of the schedules constant, linear and cosine"));
}

}  // namespace crosshatch::nn
