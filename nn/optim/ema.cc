// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/ema.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/wrap_like.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

std::string EntryName(const Parameter& parameter) {
  return absl::StrCat(parameter.name(), ".average");
}

/// While it is there, what is made lies where `parameter` does.
class MemoryOf {
 public:
  explicit MemoryOf(const Parameter& parameter) {
    if (parameter.on_host()) on_host_.emplace();
  }

 private:
  std::optional<HostMemoryScope> on_host_;
};

}  // namespace

Ema::Ema(std::vector<Parameter*> parameters, const Options& options)
    : parameters_(std::move(parameters)),
      options_(options),
      averages_(parameters_.size()) {
  CH_CHECK(options.decay >= 0 && options.decay < 1)
      << "Ema: decay is at least 0 and below 1, not " << options.decay;
  for (const Parameter* parameter : parameters_) {
    CH_CHECK(parameter != nullptr) << "Ema: a parameter is null";
    CH_CHECK(IsFloatingPoint(parameter->data().dtype()))
        << "Ema: parameter " << parameter->name() << " is "
        << parameter->data().Describe();
  }
}

const Tensor& Ema::average(size_t i) const {
  CH_CHECK(i < averages_.size())
      << "Ema: the average of parameter " << i << " of " << averages_.size();
  return averages_[i];
}

Tensor Ema::LocalOf(size_t i) const {
  return WritableLocalTensor(parameters_[i]->data(), "Ema");
}

absl::Status Ema::CheckNotSwapped(const char* what) const {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (!swapped_in()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Ema::", what,
                   ": the averages are swapped in, in the place "
                   "of the parameters; call SwapOut first"));
}

void Ema::MakeAverages() {
  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const MemoryOf scope(*parameters_[i]);
    const Tensor& data = parameters_[i]->data();
    averages_[i] = WrapLike(data, Empty(LocalTensor(data).sizes(), kFloat32));
  }
}

absl::Status Ema::Update() {
  CH_RETURN_IF_ERROR(CheckNotSwapped("Update"));
  const NoGrad no_grad;
  if (!has_averages_) {
    MakeAverages();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const MemoryOf scope(*parameters_[i]);
      CopyInPlace(LocalTensor(averages_[i]),
                  LocalTensor(parameters_[i]->data()));
    }
    has_averages_ = true;
    return RankContext::Current().status();
  }
  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const MemoryOf scope(*parameters_[i]);
    const Tensor average = LocalTensor(averages_[i]);
    MulInPlace(average, options_.decay);
    AddInPlace(average, LocalTensor(parameters_[i]->data()),
               1 - options_.decay);
  }
  return RankContext::Current().status();
}

absl::Status Ema::SwapIn() {
  CH_RETURN_IF_ERROR(CheckNotSwapped("SwapIn"));
  if (!has_averages_) {
    return absl::FailedPreconditionError(
        "Ema::SwapIn: there are no averages before the first Update");
  }
  const NoGrad no_grad;
  const MemoryClassScope memory_class(MemoryClass::kOptimizerState);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const MemoryOf scope(*parameters_[i]);
    const Tensor local = LocalOf(i);
    aside_.push_back(Clone(local));
    CopyInPlace(local, LocalTensor(averages_[i]));
  }
  return RankContext::Current().status();
}

absl::Status Ema::SwapOut() {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (!swapped_in()) {
    return absl::FailedPreconditionError(
        "Ema::SwapOut: the averages are not swapped in");
  }
  const NoGrad no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const MemoryOf scope(*parameters_[i]);
    CopyInPlace(LocalOf(i), aside_[i]);
  }
  aside_.clear();
  return RankContext::Current().status();
}

absl::StatusOr<StateDict> Ema::State() {
  CH_RETURN_IF_ERROR(CheckNotSwapped("State"));
  if (!has_averages_) return StateDict();
  return AllAverages();
}

absl::StatusOr<StateDict> Ema::AllAverages() const {
  StateDict state;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(state.Add(EntryName(*parameters_[i]), averages_[i]));
  }
  return state;
}

absl::StatusOr<StateDict> Ema::StateToFill(
    const std::vector<std::string>& saved) {
  CH_RETURN_IF_ERROR(CheckNotSwapped("StateToFill"));
  StateDict state;
  std::vector<std::string> own;
  // One that was never updated has kept nothing.
  if (!saved.empty()) {
    for (const Parameter* parameter : parameters_) {
      own.push_back(EntryName(*parameter));
    }
    std::sort(own.begin(), own.end());
  }
  CH_RETURN_IF_ERROR(MatchStateNames("this Ema", own, saved, {}).status());
  if (saved.empty()) return state;
  // They are averages once they are filled: a load may fail before.
  if (!has_averages_) MakeAverages();
  return AllAverages();
}

absl::Status Ema::Restore(const StateDict& state) {
  if (state.empty()) {
    std::fill(averages_.begin(), averages_.end(), Tensor());
    has_averages_ = false;
    return absl::OkStatus();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(
        CheckFilled(state, EntryName(*parameters_[i]), averages_[i]));
  }
  for (const Tensor& average : averages_) {
    BeginWrite("Ema::Restore", LocalTensor(average));
  }
  has_averages_ = true;
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
