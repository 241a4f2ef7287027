// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/initializer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/philox.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

using Fan = Initializer::Fan;
using Kind = Initializer::Kind;

// A range of counters that other draws of the same name do not use: FillNormal
// and FillUniform count from 0.
constexpr uint64_t kElementStreams = uint64_t{1} << 63;

double NormalBelow(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Returns the probability that a normal sample is within the bounds.
double PartWithin(const Initializer& initializer) {
  return NormalBelow((initializer.high - initializer.mean) /
                     initializer.stddev) -
         NormalBelow((initializer.low - initializer.mean) / initializer.stddev);
}

// Returns the divisor of the standard deviation.
double SpreadDivisor(ShapeView sizes, Fan fan) {
  if (fan == Fan::kNone) return 1;
  int64_t each = 1;
  for (size_t d = 2; d < sizes.size(); ++d) each *= sizes[d];
  const auto in = static_cast<double>(sizes[1] * each);
  const auto out = static_cast<double>(sizes[0] * each);
  const double of = fan == Fan::kIn    ? in
                    : fan == Fan::kOut ? out
                                       : (in + out) / 2;
  return std::sqrt(std::max(of, 1.0));
}

Tensor Float32Like(const Tensor& tensor) {
  return MakeDTensorLike(tensor, Empty(LocalTensor(tensor).sizes(), kFloat32));
}

// Draws again until about one element in 2^40 is outside, equally often for
// each element. The rest is clamped.
void FillTruncated(const Tensor& tensor, const Initializer& initializer,
                   uint64_t seed, const std::string& name) {
  const auto rounds = static_cast<uint64_t>(
      std::ceil(-40 * std::log(2.0) /
                std::log(std::max(1 - PartWithin(initializer), 1e-12))));
  const Tensor value = Float32Like(tensor);
  const Tensor draw = Float32Like(tensor);
  const Tensor local = LocalTensor(value);
  FillNormal(value, seed, name, initializer.mean, initializer.stddev);
  for (uint64_t round = 1; round < rounds; ++round) {
    FillNormal(draw, seed, name, initializer.mean, initializer.stddev, round);
    const Tensor bounded =
        Minimum(Maximum(local, initializer.low), initializer.high);
    CopyInPlace(local, Where(Equal(bounded, local), local, LocalTensor(draw)));
  }
  CopyInPlace(WritableLocalTensor(tensor, "an initializer"),
              Minimum(Maximum(local, initializer.low), initializer.high));
}

void FillByElement(const Tensor& tensor, const Initializer& initializer,
                   uint64_t seed, const std::string& name) {
  const Shape& sizes = tensor.sizes();
  const Box box =
      tensor.is_distributed() ? LocalBoxOf(tensor) : WholeBox(sizes);
  const Shape strides = ContiguousStrides(sizes);
  const uint64_t key = RandomKeyOf(seed, name);
  const auto copy_from = [&](const Tensor& values) {
    CopyInPlace(WritableLocalTensor(tensor, "an initializer"), values);
  };
  if (RankContext::Current().dry_run()) {
    return copy_from(Empty(box.sizes, kFloat64));
  }
  std::vector<double> values;
  values.reserve(static_cast<size_t>(box.numel()));
  Shape index = box.offsets;
  for (int64_t i = 0; i < box.numel(); ++i) {
    int64_t row_major = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      row_major += index[d] * strides[d];
    }
    values.push_back(initializer.value(
        InitElement(index, sizes, key, static_cast<uint64_t>(row_major))));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < box.offsets[d] + box.sizes[d]) break;
      index[d] = box.offsets[d];
    }
  }
  copy_from(FromValues<double>(box.sizes, values));
}

bool IsRandom(Kind kind) {
  return kind == Kind::kNormal || kind == Kind::kUniform ||
         kind == Kind::kTruncatedNormal;
}

}  // namespace

double InitElement::Uniform(uint64_t i) const {
  const uint64_t stream = kElementStreams + i / 4;
  const std::array<uint32_t, 4> block = internal::Philox(
      {static_cast<uint32_t>(row_major_),
       static_cast<uint32_t>(row_major_ >> 32), static_cast<uint32_t>(stream),
       static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
  return double{internal::UniformOf(block[i % 4])};
}

namespace init {

Initializer Constant(double value) {
  return {.kind = Kind::kConstant, .mean = value};
}

Initializer Normal(double stddev, double mean) {
  return {.kind = Kind::kNormal, .stddev = stddev, .mean = mean};
}

Initializer Uniform(double low, double high) {
  return {.kind = Kind::kUniform, .low = low, .high = high};
}

Initializer TruncatedNormal(double stddev, double mean, double low,
                            double high) {
  return {.kind = Kind::kTruncatedNormal,
          .stddev = stddev,
          .mean = mean,
          .low = low,
          .high = high};
}

Initializer XavierUniform(double gain) {
  const double bound = gain * std::sqrt(3.0);
  return {
      .kind = Kind::kUniform, .low = -bound, .high = bound, .fan = Fan::kMean};
}

Initializer XavierNormal(double gain) {
  return {.kind = Kind::kNormal, .stddev = gain, .fan = Fan::kMean};
}

Initializer KaimingUniform(double negative_slope, Fan fan) {
  const double bound = std::sqrt(6 / (1 + negative_slope * negative_slope));
  return {.kind = Kind::kUniform, .low = -bound, .high = bound, .fan = fan};
}

Initializer KaimingNormal(double negative_slope, Fan fan) {
  return {.kind = Kind::kNormal,
          .stddev = std::sqrt(2 / (1 + negative_slope * negative_slope)),
          .fan = fan};
}

Initializer ScaledResidual(int64_t layers, double stddev) {
  CH_CHECK_GE(layers, 1) << "ScaledResidual: number of layers";
  return Normal(stddev / std::sqrt(2.0 * static_cast<double>(layers)));
}

Initializer ByElement(std::function<double(const InitElement&)> value) {
  CH_CHECK(value != nullptr) << "ByElement without a function";
  return {.kind = Kind::kByElement, .value = std::move(value)};
}

}  // namespace init

std::string Initializer::ToString() const {
  constexpr const char* kFans[] = {"", " / sqrt(fan_in)", " / sqrt(fan_out)",
                                   " / sqrt(mean of fan_in and fan_out)"};
  const char* const divisor = kFans[static_cast<int>(fan)];
  const std::string bounds = absl::StrCat("[", low, ", ", high, ")");
  const std::string normal =
      absl::StrCat("normal(mean ", mean, ", stddev ", stddev, divisor, ")");
  switch (kind) {
    case Kind::kZeros:
      return "zeros";
    case Kind::kOnes:
      return "ones";
    case Kind::kConstant:
      return absl::StrCat("constant(", mean, ")");
    case Kind::kNormal:
      return normal;
    case Kind::kUniform:
      return absl::StrCat("uniform", bounds, divisor);
    case Kind::kTruncatedNormal:
      return absl::StrCat(normal, " within ", bounds);
    case Kind::kByElement:
      break;
  }
  return "by element";
}

absl::Status CheckInitializer(const std::string& name, const Tensor& tensor,
                              const Initializer& initializer) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot fill ", name, " ", tensor.Describe(), ": ", why...));
  };
  if (IsRandom(initializer.kind) && !IsFloatingPoint(tensor.dtype())) {
    return refuse(
        "its initializer draws random numbers, which are floating "
        "point; use init::ByElement, init::Constant or zeros");
  }
  if (initializer.kind == Kind::kUniform &&
      !(std::isfinite(initializer.low) && std::isfinite(initializer.high) &&
        initializer.low <= initializer.high)) {
    return refuse("a uniform distribution has no bounds ", initializer.low,
                  " and ", initializer.high);
  }
  if (IsRandom(initializer.kind) &&
      !(std::isfinite(initializer.mean) && initializer.stddev >= 0 &&
        std::isfinite(initializer.stddev))) {
    return refuse("a normal distribution has no mean ", initializer.mean,
                  " and standard deviation ", initializer.stddev);
  }
  if (initializer.fan != Fan::kNone && tensor.ndim() < 2) {
    return refuse(
        "its initializer depends on the numbers of inputs and outputs, so the "
        "tensor needs at least two dims, [out, in, ...]");
  }
  if (initializer.kind == Kind::kTruncatedNormal &&
      !(initializer.stddev > 0 && PartWithin(initializer) >= 0.1)) {
    return refuse("less than a tenth of the normal distribution with mean ",
                  initializer.mean, " and standard deviation ",
                  initializer.stddev, " is between ", initializer.low, " and ",
                  initializer.high, "; widen the bounds or use init::Uniform");
  }
  return absl::OkStatus();
}

void FillInitial(const Tensor& tensor, const Initializer& initializer,
                 uint64_t seed, const std::string& name) {
  const NoGrad no_grad;
  const double spread = 1 / SpreadDivisor(tensor.sizes(), initializer.fan);
  const auto local = [&] {
    return WritableLocalTensor(tensor, "an initializer");
  };
  switch (initializer.kind) {
    case Kind::kZeros:
      return ZeroInPlace(local());
    case Kind::kOnes:
      return FillInPlace(local(), 1.0);
    case Kind::kConstant:
      return FillInPlace(local(), initializer.mean);
    case Kind::kNormal:
      return FillNormal(tensor, seed, name, initializer.mean,
                        initializer.stddev * spread);
    case Kind::kUniform:
      return FillUniform(tensor, seed, name, initializer.low * spread,
                         initializer.high * spread);
    case Kind::kTruncatedNormal:
      return FillTruncated(tensor, initializer, seed, name);
    case Kind::kByElement:
      return FillByElement(tensor, initializer, seed, name);
  }
}

}  // namespace crosshatch::nn
