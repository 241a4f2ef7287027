// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_trace.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

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

/// Returns the kind that a span counts as. Ops, collectives and waits are
/// separate by name; modules and groups are combined.
std::string KindOf(const Span& span) {
  if (span.what == "op" || span.what == "collective" || span.what == "wait") {
    return absl::StrCat(span.what, " ", span.subject);
  }
  return span.what;
}

}  // namespace

std::vector<TimeSpent> TimesOf(const TracedStep& step) {
  std::vector<std::string> rows;
  std::map<std::pair<size_t, std::string>, TimeSpent> spent;
  std::map<size_t, std::vector<const Span*>> open;
  double outermost_us = 0;  // In the row of the rank's thread.
  for (const Span& span : step.spans) {
    if (span.end_us < 0) continue;
    const auto found = std::find(rows.begin(), rows.end(), span.row);
    const auto row = static_cast<size_t>(found - rows.begin());
    if (found == rows.end()) rows.push_back(span.row);
    std::vector<const Span*>& around = open[row];
    while (!around.empty() && around.back()->end_us <= span.begin_us) {
      around.pop_back();
    }
    const double us = span.end_us - span.begin_us;
    if (!around.empty()) {
      spent[{row, KindOf(*around.back())}].us -= us;
    } else if (span.row == "compute") {
      outermost_us += us;
    }
    TimeSpent& own = spent[{row, KindOf(span)}];
    own.row = span.row;
    own.what = KindOf(span);
    ++own.calls;
    own.us += us;
    around.push_back(&span);
  }
  std::vector<std::pair<size_t, TimeSpent>> sorted;
  for (const auto& [key, time] : spent) sorted.emplace_back(key.first, time);
  const auto compute = std::find(rows.begin(), rows.end(), "compute");
  if (compute != rows.end()) {
    sorted.push_back({static_cast<size_t>(compute - rows.begin()),
                      {.row = "compute",
                       .what = "rest",
                       .calls = 1,
                       .us = std::max(0.0, step.us - outermost_us)}});
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     return std::pair(a.first, -a.second.us) <
                            std::pair(b.first, -b.second.us);
                   });
  std::vector<TimeSpent> times;
  for (auto& [row, time] : sorted) times.push_back(std::move(time));
  return times;
}

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
