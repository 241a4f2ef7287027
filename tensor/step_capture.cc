// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/step_capture.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/byte_hash.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

std::string StepCapture::ReasonAgainst(RankContext& context) {
  if (context.dry_run()) return "a dry run issues no work";
  if (!context.compute_stream_->can_capture()) {
    return absl::StrCat(
        "streams of ",
        context.backend().device().is_cpu() ? "the CPU" : "this rank",
        " cannot be captured");
  }
  if (context.sink() != nullptr) {
    return "events are logged, which a replay would not repeat";
  }
  return "";
}

uint64_t StepCapture::NextNumber() {
  static std::atomic<uint64_t> captures{0};
  return ++captures;
}

StepCapture::StepCapture(RankContext& context)
    : context_(context), number_(NextNumber()) {
  CH_CHECK(ReasonAgainst(context).empty()) << ReasonAgainst(context);
  CH_CHECK(context.capture_ == nullptr) << "a capture within a capture";
  context.allocator_->ReleaseFreeMemory();
  replaced_ =
      context.backend().MakeAllocator(context.options_.adversarial_seed != 0);
  replaced_->set_owner(context.allocator_->owner());
  memory_ = replaced_.get();
  Stream& compute = *context.compute_stream_;
  for (const auto& side : context.side_streams_) compute.Wait(side->Record());
  compute.BeginCapture(number_);
  const Event begin = compute.Record();
  for (const auto& side : context.side_streams_) {
    side->JoinCapture(number_);
    side->Wait(begin);
  }
  ExchangeAllocators();
  context.capture_ = this;
  captures_ = true;
}

StepCapture::~StepCapture() {
  if (captures_) Finish();
}

void StepCapture::ExchangeAllocators() {
  const bool is_current =
      context_.current_allocator_ == context_.allocator_.get();
  std::swap(context_.allocator_, replaced_);
  if (is_current) context_.current_allocator_ = context_.allocator_.get();
}

void StepCapture::Finish() {
  captures_ = false;
  context_.capture_ = nullptr;
  Stream& compute = *context_.compute_stream_;
  for (const auto& side : context_.side_streams_) {
    compute.Wait(side->Record());
    side->LeaveCapture();
  }
  work_ = compute.EndCapture();
  ExchangeAllocators();
  // Blocks and results of the step use it as long as the rank runs.
  context_.graph_memory_.push_back(std::move(replaced_));
}

void StepCapture::Issue() {
  Stream& compute = *context_.compute_stream_;
  work_->Launch();
  const Event end = compute.Record();
  for (const auto& side : context_.side_streams_) side->Wait(end);
  for (const auto& action : after_launch_) action(end);
}

void StepCapture::Break(const std::string& why) {
  if (!captures_) return;
  const ErrorContext* const op =
      ErrorContext::Innermost(ErrorContext::Kind::kOp);
  const auto module = RunningModule();
  broken_by_ = absl::StrCat(
      why,
      op == nullptr || op->op_name() == nullptr
          ? ""
          : absl::StrCat(" in op ", op->op_name()),
      module == nullptr ? "" : absl::StrCat(" in module ", *module));
  Finish();
  Issue();
}

void StepCapture::End() {
  if (captures_) Finish();
}

void StepCapture::Launch() {
  CH_CHECK(work_ != nullptr && broken_by_.empty())
      << "a replay of a capture that has not ended, or was broken by "
      << broken_by_;
  if (std::exchange(was_launched_, true)) {
    for (const auto& action : on_replay_) action();
    for (EachStep& each : each_step_) {
      each.stream->UpdateKernels(*work_, each.kernels, each.task);
    }
  }
  Issue();
}

void StepCapture::LaunchEachStep(Stream& stream, Stream::Task task) {
  EachStep& each = each_step_.emplace_back(
      EachStep{&stream, std::move(task), CapturedKernels()});
  stream.CaptureKernels(each.kernels, each.task);
}

void StepCapture::AddToIdentity(absl::string_view part) {
  identity_ =
      HashBytes(identity_, part.data(), static_cast<int64_t>(part.size()));
}

}  // namespace crosshatch
