// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/linear.h"

#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/matmul.h"

namespace crosshatch::nn {
namespace {

int64_t UnitFor(int64_t features, int64_t unit, int64_t part, int ranks) {
  if (part == 0 || features / unit >= ranks) return unit;
  // The largest share, in parts: a whole unit gains nothing from being cut.
  const int64_t share = (features / part + ranks - 1) / ranks;
  return share * part < unit ? part : unit;
}

// Whether `ranks` have as many parts each, of one unit each: several have parts
// of the same one.
bool SharesUnits(int64_t features, int64_t unit, int64_t parts, int ranks) {
  const int64_t units = features / unit;
  return units > 0 && ranks > units && ranks % units == 0 && parts != 0 &&
         parts % ranks == 0;
}

int64_t OwnUnitFor(int64_t features, int64_t unit, int64_t part, int ranks) {
  const int64_t parts = part == 0 ? 0 : features / part;
  return SharesUnits(features, unit, parts, ranks) ? part : unit;
}

}  // namespace

Linear::Linear(const LinearOptions& options) {
  CH_CHECK(options.in > 0 && options.out > 0)
      << "linear: LinearOptions::in " << options.in << " and out "
      << options.out << " are the features, above 0";
  Init(options.in, options.out, options);
}

Linear::Linear(int64_t in_features, int64_t out_features,
               const LinearOptions& options) {
  CH_CHECK(options.in == 0 && options.out == 0)
      << "linear: of " << in_features << " and " << out_features
      << " features, and of LinearOptions::in " << options.in << " and out "
      << options.out << "; give either";
  Init(in_features, out_features, options);
}

void Linear::Init(int64_t in_features, int64_t out_features,
                  const LinearOptions& options) {
  weight_ = std::make_shared<Parameter>(
      Shape{out_features, in_features}, kFloat32,
      Initializer{Initializer::Kind::kNormal, options.stddev});
  out_unit_ = options.out_unit;
  in_unit_ = options.in_unit;
  out_part_ = options.out_part;
  in_part_ = options.in_part;
  out_readers_ = options.out_readers;
  CH_CHECK(out_unit_ > 0 && in_unit_ > 0 && out_part_ >= 0 && in_part_ >= 0)
      << "linear: units of " << out_unit_ << " and " << in_unit_
      << " features, parts of " << out_part_ << " and " << in_part_;
  const auto check_divides = [](const char* part, int64_t size,
                                const char* whole, int64_t of) {
    CH_CHECK(size == 0 || of % size == 0)
        << "linear: LinearOptions::" << part << " " << size
        << " does not divide the " << of << " features of " << whole;
  };
  check_divides("out_unit", out_unit_, "the output", out_features);
  check_divides("in_unit", in_unit_, "the input", in_features);
  check_divides("out_part", out_part_, "an out_unit", out_unit_);
  check_divides("in_part", in_part_, "an in_unit", in_unit_);
  const int64_t units = out_features / out_unit_;
  CH_CHECK(out_readers_ == 0 || units == 0 || out_readers_ % units == 0)
      << "linear: " << units << " units of the output do not divide the "
      << out_readers_ << " that read them (LinearOptions::out_readers)";
  RegisterParameter("weight", weight_);
  if (options.bias) {
    bias_ = std::make_shared<Parameter>(Shape{out_features}, kFloat32,
                                        Initializer{Initializer::Kind::kZeros});
    RegisterParameter("bias", bias_);
  }
}

Linear::Linear(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {
  CH_CHECK(weight_ != nullptr) << "a Linear of a weight that is null";
  CH_CHECK_EQ(weight_->data().ndim(), 2) << "linear";
  RegisterParameter("weight", weight_);
}

int64_t Linear::out_unit(int ranks) const {
  return UnitFor(weight_->data().size(0), out_unit_, out_part_, ranks);
}

int64_t Linear::in_unit(int ranks) const {
  return UnitFor(weight_->data().size(1), in_unit_, in_part_, ranks);
}

int64_t Linear::own_out_unit(int ranks) const {
  return OwnUnitFor(weight_->data().size(0), out_unit_, out_part_, ranks);
}

int64_t Linear::own_in_unit(int ranks) const {
  return OwnUnitFor(weight_->data().size(1), in_unit_, in_part_, ranks);
}

int Linear::out_copies(int ranks) const {
  const int64_t features = weight_->data().size(0);
  return SharesUnits(features, out_unit_, out_readers_, ranks)
             ? static_cast<int>(ranks * out_unit_ / features)
             : 1;
}

TensorList Linear::ForwardImpl(TensorSpan inputs) {
  CH_CHECK_EQ(inputs.size(), 1u) << "linear";
  const Tensor& x = inputs[0];
  const Tensor& weight = weight_->Get();
  const Tensor bias =
      bias_ == nullptr ? Tensor() : ToDType(bias_->Get(), weight.dtype());
  CH_CHECK(IsFloatingPoint(x.dtype()) || !IsFloatingPoint(weight.dtype()))
      << "linear of " << x.Describe() << " by a weight of " << weight.Describe()
      << ": it takes floating point; ids go through an "
      << "Embedding, ToDType makes numbers of integers";
  if (!IsFloatingPoint(x.dtype())) {
    return {crosshatch::Linear(x, weight, bias)};
  }
  return {ToDType(crosshatch::Linear(ToDType(x, weight.dtype()), weight, bias),
                  x.dtype())};
}

}  // namespace crosshatch::nn
