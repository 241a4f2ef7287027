// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_trace.h"

#include <cstring>
#include <utility>

namespace crosshatch::examples {
namespace {

// Maximal number of memory samples; beyond it, the higher of two neighbours is
// kept.
constexpr size_t kMaxSamples = 1200;

int64_t Total(const MemorySample& sample) {
  int64_t total = 0;
  for (const int64_t bytes : sample.bytes) total += bytes;
  return total;
}

/// Keeps the sample with more bytes of each two neighbours.
void Thin(std::vector<MemorySample>& samples) {
  size_t kept = 0;
  for (size_t i = 0; i < samples.size(); i += 2) {
    const bool second =
        i + 1 < samples.size() && Total(samples[i + 1]) >= Total(samples[i]);
    samples[kept++] = samples[second ? i + 1 : i];
  }
  samples.resize(kept);
}

}  // namespace

StepTracer::StepTracer(RankContext& context)
    : context_(context), next_(context.sink()), spans_(SpanLog::Clock::now()) {
  context_.set_sink(this);
  Sample();
}

StepTracer::~StepTracer() {
  if (!is_finished_) {
    // Queued work still writes to this sink.
    context_.Synchronize().IgnoreError();
    context_.set_sink(next_);
  }
}

void StepTracer::Write(const LogEvent& event) {
  if (event.kind == EventKind::kSpanBegin ||
      event.kind == EventKind::kSpanEnd) {
    spans_.Write(event);
    if (next_ != nullptr && next_->wants_spans()) next_->Write(event);
    return;
  }
  if (event.kind == EventKind::kAllocate || event.kind == EventKind::kRelease) {
    Sample();
  }
  if (event.kind == EventKind::kRelease &&
      std::strcmp(event.what, "release") == 0) {
    // The event precedes the change of the statistics.
    for (int i = 0; i < kNumMemoryClasses; ++i) {
      if (*event.subject != Name(static_cast<MemoryClass>(i))) continue;
      memory_.back().bytes[static_cast<size_t>(i)] -= event.bytes;
    }
  }
  if (next_ != nullptr) next_->Write(event);
}

void StepTracer::Sample() {
  memory_.push_back({.us = spans_.MicrosecondsNow(),
                     .bytes = context_.device_allocator().stats().current});
  if (memory_.size() >= 2 * kMaxSamples) Thin(memory_);
}

TracedStep StepTracer::Finish(int64_t step) {
  Sample();
  context_.set_sink(next_);
  is_finished_ = true;
  return {.step = step,
          .rank = context_.world_rank(),
          .dry = context_.dry_run(),
          .us = memory_.back().us,
          .spans = spans_.spans(),
          .memory = std::move(memory_)};
}

}  // namespace crosshatch::examples
