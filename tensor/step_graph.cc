// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/step_graph.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {
namespace {

// Begins the text of a rank that has a graph; others send their reason.
constexpr char kGraph[] = "graph ";

}  // namespace

StepGraph::StepGraph(StepGraphOptions options) : options_(std::move(options)) {
  CH_CHECK_GE(options_.warmup, 1) << "StepGraph: steps before the capture";
}

absl::StatusOr<TensorList> StepGraph::Run(TensorSpan inputs, Step step) {
  using Mode = StepGraphOptions::Mode;
  for (const Tensor& input : inputs) {
    CH_CHECK(!input.is_distributed() && !input.requires_grad())
        << "StepGraph: the input " << input.Describe()
        << " must be local and require no gradient";
  }
  RankContext& context = RankContext::Current();
  CH_RETURN_IF_ERROR(context.status());
  if (options_.mode == Mode::kOff || has_failed_) return step(inputs);
  if (runs_ < options_.warmup) {
    ++runs_;
    return step(inputs);
  }
  if (capture_ == nullptr) return Capture(inputs, step);

  CH_RETURN_IF_ERROR(Agree(ReasonAgainst(inputs)));
  if (!reason_.empty()) {
    CH_ASSIGN_OR_RETURN(TensorList results, step(inputs));
    CH_RETURN_IF_ERROR(Refused());
    return results;
  }
  {
    const NoGrad no_grad;
    for (size_t i = 0; i < inputs.size(); ++i) {
      CopyInPlace(inputs_[i], inputs[i]);
    }
  }
  capture_->Launch();
  context.AddCopiedBytes(copied_bytes_);
  ++replays_;
  CH_RETURN_IF_ERROR(context.status());
  return results_;
}

absl::StatusOr<TensorList> StepGraph::Capture(TensorSpan inputs, Step step) {
  RankContext& context = RankContext::Current();
  std::string reason = StepCapture::ReasonAgainst(context);
  if (reason.empty()) {
    const NoGrad no_grad;
    for (const Tensor& input : inputs) inputs_.push_back(Clone(input));
    capture_ = std::make_unique<StepCapture>(context);
  }
  const int64_t copied = context.copied_bytes();
  absl::StatusOr<TensorList> results =
      step(reason.empty() ? TensorSpan(inputs_) : inputs);
  if (reason.empty()) {
    capture_->End();
    reason = capture_->broken_by();
  }
  if (!results.ok()) {
    has_failed_ = true;
    reason_ = "the step failed while it was captured";
    return results.status();
  }
  CH_RETURN_IF_ERROR(context.status());
  // Its work has not run unless it was broken; all ranks launch theirs, before
  // they wait for each other.
  if (reason.empty()) capture_->Launch();
  CH_RETURN_IF_ERROR(Agree(reason));
  if (!reason_.empty()) {
    has_failed_ = true;
    CH_RETURN_IF_ERROR(Refused());
    return results;
  }
  results_ = *results;
  copied_bytes_ = context.copied_bytes() - copied;
  return results;
}

std::string StepGraph::ReasonAgainst(TensorSpan inputs) const {
  std::string reason = StepCapture::ReasonAgainst(RankContext::Current());
  if (!reason.empty()) return reason;
  if (inputs.size() != inputs_.size()) {
    return absl::StrCat("the step has ", inputs.size(),
                        " inputs, and the captured one ", inputs_.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].sizes() == inputs_[i].sizes() &&
        inputs[i].dtype() == inputs_[i].dtype()) {
      continue;
    }
    return absl::StrCat("input ", i, " is ", inputs[i].Describe(),
                        ", and that of the captured step ",
                        inputs_[i].Describe());
  }
  return "";
}

absl::Status StepGraph::Agree(const std::string& own) {
  const std::string text =
      own.empty() ? absl::StrCat(kGraph, capture_->identity()) : own;
  std::vector<std::string> texts = {text};
  if (options_.exchange != nullptr) {
    CH_ASSIGN_OR_RETURN(texts, options_.exchange(text));
  }
  reason_.clear();
  if (identities_.empty()) identities_ = texts;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!absl::StartsWith(texts[rank], kGraph)) {
      reason_ = texts.size() == 1
                    ? texts[rank]
                    : absl::StrCat("on rank ", rank, " ", texts[rank]);
      return absl::OkStatus();
    }
    if (texts[rank] == identities_[rank]) continue;
    reason_ = absl::StrCat("rank ", rank, " has ", texts[rank],
                           ", and had captured ", identities_[rank]);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status StepGraph::Refused() const {
  if (options_.mode != StepGraphOptions::Mode::kOn) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the step cannot be replayed as a graph: ", reason_));
}

}  // namespace crosshatch
