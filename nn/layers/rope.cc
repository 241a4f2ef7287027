// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/rope.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

using Kind = RopeScaling::Kind;

/// Returns theta^(2i / head_dim).
float Wavelength(int64_t i, int64_t head_dim, double theta) {
  const float exponent =
      static_cast<float>(2 * i) / static_cast<float>(head_dim);
  return static_cast<float>(std::pow(theta, double{exponent}));
}

/// Returns the theta of kDynamic, which grows with the sequence length.
double DynamicTheta(int64_t head_dim, double theta, const RopeScaling& s,
                    int64_t length) {
  const auto n = static_cast<double>(s.original_positions);
  const double longest = std::max(static_cast<double>(length), n);
  const auto dim = static_cast<double>(head_dim);
  return theta *
         std::pow(s.factor * longest / n - (s.factor - 1), dim / (dim - 2));
}

float Llama3Frequency(float f, const RopeScaling& s) {
  const auto n = static_cast<double>(s.original_positions);
  const float turn = static_cast<float>(2 * std::numbers::pi) / f;
  const auto factor = static_cast<float>(s.factor);
  if (turn < static_cast<float>(n / s.high_freq_factor)) return f;
  if (turn > static_cast<float>(n / s.low_freq_factor)) return f / factor;
  const float smooth =
      (static_cast<float>(n) / turn - static_cast<float>(s.low_freq_factor)) /
      static_cast<float>(s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / factor + smooth * f;
}

/// The ramp of kYarn: pairs up to `low` keep their frequency, pairs from `high`
/// on are divided fully.
struct YarnRamp {
  float low, high;

  YarnRamp(int64_t head_dim, double theta, const RopeScaling& s) {
    const auto dim = static_cast<double>(head_dim);
    // Returns the pair that makes `turns` turns within the original positions.
    const auto pair_of = [&](double turns) {
      return dim *
             std::log(static_cast<double>(s.original_positions) /
                      (turns * 2 * std::numbers::pi)) /
             (2 * std::log(theta));
    };
    double first = pair_of(s.beta_fast);
    double last = pair_of(s.beta_slow);
    if (s.truncate) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, dim - 1);
    if (first == last) last += 0.001;
    low = static_cast<float>(first);
    high = static_cast<float>(last);
  }

  float Divided(int64_t i) const {
    return std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
  }
};

}  // namespace

absl::Status RopeScaling::Validate(int64_t head_dim, double theta) const {
  const auto refuse = [](const char* name, double value, const char* wants) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope scaling: ", name, " must be ", wants, ", not ", value));
  };
  // The comparisons fail for NaN.
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  if (kind == Kind::kNone) return absl::OkStatus();
  if (kind != Kind::kLongRope && !(factor >= 1 && std::isfinite(factor))) {
    return refuse("factor", factor, "at least 1");
  }
  if (kind != Kind::kLinear && original_positions < 1) {
    return refuse("original_positions", static_cast<double>(original_positions),
                  "at least 1");
  }
  if (!positive(attention_factor)) {
    return refuse("attention_factor", attention_factor, "positive");
  }
  if (kind == Kind::kDynamic && head_dim < 4) {
    return refuse("head_dim", static_cast<double>(head_dim),
                  "at least 4 where it is dynamic");
  }
  if (kind == Kind::kLlama3) {
    if (!positive(low_freq_factor)) {
      return refuse("low_freq_factor", low_freq_factor, "positive");
    }
    if (!(high_freq_factor > low_freq_factor) || !positive(high_freq_factor)) {
      return refuse("high_freq_factor", high_freq_factor,
                    "more than low_freq_factor");
    }
  }
  if (kind == Kind::kYarn) {
    // The ramp divides by the logarithm of theta.
    if (!(theta > 1)) return refuse("theta", theta, "more than 1");
    if (!positive(beta_slow)) return refuse("beta_slow", beta_slow, "positive");
    if (!(beta_fast > beta_slow) || !positive(beta_fast)) {
      return refuse("beta_fast", beta_fast, "more than beta_slow");
    }
  }
  if (kind == Kind::kLongRope) {
    for (const auto* factors : {&short_factor, &long_factor}) {
      const char* const name =
          factors == &short_factor ? "short_factor" : "long_factor";
      if (static_cast<int64_t>(factors->size()) != head_dim / 2) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rope scaling: ", name, " must have head_dim / 2 = ", head_dim / 2,
            " numbers, not ", factors->size()));
      }
      for (const double f : *factors) {
        if (!positive(f)) return refuse(name, f, "positive numbers");
      }
    }
  }
  return absl::OkStatus();
}

std::vector<float> RotaryFrequencies(int64_t head_dim, double theta,
                                     const RopeScaling& scaling,
                                     int64_t length) {
  if (scaling.kind == Kind::kDynamic) {
    theta = DynamicTheta(head_dim, theta, scaling, length);
  }
  const auto factor = static_cast<float>(scaling.factor);
  const std::vector<double>& stretch = length > scaling.original_positions
                                           ? scaling.long_factor
                                           : scaling.short_factor;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const float wavelength = Wavelength(i, head_dim, theta);
    float f = 1.0f / wavelength;
    switch (scaling.kind) {
      case Kind::kNone:
      case Kind::kDynamic:
        break;
      case Kind::kLinear:
        f /= factor;
        break;
      case Kind::kLlama3:
        f = Llama3Frequency(f, scaling);
        break;
      case Kind::kYarn: {
        // The same rounding as in transformers, which subtracts from 1 twice.
        const float kept = 1 - YarnRamp(head_dim, theta, scaling).Divided(i);
        f = 1.0f / (factor * wavelength) * (1 - kept) + f * kept;
        break;
      }
      case Kind::kLongRope:
        f = 1.0f /
            (static_cast<float>(stretch[static_cast<size_t>(i)]) * wavelength);
        break;
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

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
