// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/ema.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/optim/gradients.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

constexpr char kUpdates[] = "updates";

std::string EntryName(const Parameter& parameter) {
  return absl::StrCat(parameter.name(), ".average");
}

}  // namespace

Ema::Ema(std::vector<Parameter*> parameters, const Options& options,
         const RestoreOptions& restore_options)
    : parameters_(std::move(parameters)),
      owners_(ShareListed("Ema", parameters_)),
      options_(options),
      restore_options_(restore_options),
      averages_(parameters_.size()) {
  CH_CHECK(options.decay >= 0 && options.decay < 1)
      << "Ema: decay is at least 0 and below 1, not " << options.decay;
  for (const Parameter* parameter : parameters_) {
    CH_CHECK(IsFloatingPoint(parameter->data().dtype()))
        << "Ema: parameter " << parameter->name() << " is "
        << parameter->data().Describe();
  }
}

Ema::~Ema() {
  if (swapped_in()) SetSwapped(false);
}

void Ema::SetSwapped(bool swapped) {
  swapped_in_ = swapped;
  for (Parameter* parameter : parameters_) parameter->set_swapped(swapped);
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
    averages_[i] =
        MakeDTensorLike(data, Empty(LocalTensor(data).sizes(), kFloat32));
  }
}

absl::Status Ema::Update() {
  CH_RETURN_IF_ERROR(CheckNotSwapped("Update"));
  const NoGrad no_grad;
  if (updates_++ == 0) {
    MakeAverages();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const MemoryOf scope(*parameters_[i]);
      CopyInPlace(LocalTensor(averages_[i]),
                  LocalTensor(parameters_[i]->data()));
    }
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
  if (updates_ == 0) {
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
  SetSwapped(true);
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
  SetSwapped(false);
  return RankContext::Current().status();
}

absl::StatusOr<StateDict> Ema::State() {
  CH_RETURN_IF_ERROR(CheckNotSwapped("State"));
  StateDict state;
  CH_RETURN_IF_ERROR(state.Add(kUpdates, updates_));
  if (updates_ > 0) CH_RETURN_IF_ERROR(AddAverages(state));
  return state;
}

absl::Status Ema::AddAverages(StateDict& state) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(state.Add(EntryName(*parameters_[i]), averages_[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<StateDict> Ema::StateToFill(
    const std::vector<std::string>& saved) {
  CH_RETURN_IF_ERROR(CheckNotSwapped("StateToFill"));
  const auto is_saved = [&](const std::string& name) {
    return std::binary_search(saved.begin(), saved.end(), name);
  };
  std::vector<std::string> own;
  for (const Parameter* parameter : parameters_) {
    own.push_back(EntryName(*parameter));
  }
  // Without updates there are no averages to save.
  const bool has_averages = std::any_of(own.begin(), own.end(), is_saved);
  if (!has_averages) own.clear();
  const bool is_kept = has_averages || is_saved(kUpdates);
  const bool is_left_out = !is_kept && restore_options_.allow_missing;
  if (!is_left_out) own.push_back(kUpdates);
  std::sort(own.begin(), own.end());
  RestoreOptions options = restore_options_;
  options.allow_missing = false;
  const absl::Status matched =
      MatchStateNames("this Ema", own, saved, options).status();
  if (is_left_out && options.differences != nullptr) {
    options.differences->missing = {kUpdates};
  }
  CH_RETURN_IF_ERROR(matched);
  StateDict state;
  if (is_left_out) return state;
  CH_RETURN_IF_ERROR(state.Add(kUpdates, updates_));
  if (!has_averages) return state;
  // Only after the fill, because a load may fail before.
  if (updates_ == 0) MakeAverages();
  CH_RETURN_IF_ERROR(AddAverages(state));
  return state;
}

absl::Status Ema::Restore(const StateDict& state) {
  if (state.empty()) return absl::OkStatus();
  CH_ASSIGN_OR_RETURN(const int64_t updates, state.Get<int64_t>(kUpdates));
  const bool has_averages = state.size() > 1;
  // Without parameters there are no averages.
  const bool is_due = updates > 0 && !parameters_.empty();
  if (updates < 0 || is_due != has_averages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this Ema: \"", kUpdates, "\" is ", updates, ", and ",
        has_averages ? "averages" : "no averages",
        " were kept; it is at least 1 with averages, and 0 without"));
  }
  for (size_t i = 0; has_averages && i < parameters_.size(); ++i) {
    CH_RETURN_IF_ERROR(
        CheckFilled(state, EntryName(*parameters_[i]), averages_[i]));
  }
  updates_ = updates;
  if (!has_averages) {
    std::fill(averages_.begin(), averages_.end(), Tensor());
    return absl::OkStatus();
  }
  for (const Tensor& average : averages_) {
    BeginWrite("Ema::Restore", LocalTensor(average));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
