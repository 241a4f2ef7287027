// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_TRACE_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_TRACE_H_

/// \file
/// One step of one rank, looked at closely: its spans and its memory.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/examples/span_log.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::examples {

struct MemorySample {
  double us = 0;  ///< Since the step's beginning.
  std::array<int64_t, kNumMemoryClasses> bytes = {};
};

struct TracedStep {
  int64_t step = 0;  ///< From 1; 0: there is none.
  int rank = 0;
  /// Nothing was computed: times are those of issuing.
  bool dry = false;
  double us = 0;  ///< Of all of it.
  std::vector<Span> spans;
  std::vector<MemorySample> memory;
};

/// What a step spends on one kind of work.
struct TimeSpent {
  std::string row;   ///< The stream.
  std::string what;  ///< "op matmul", "collective all_reduce tp", "wait
                     ///< unshard", "forward", ...
  int64_t calls = 0;
  double us = 0;  ///< Without what is nested in it.
};

/// What the streams spend, the longest first within a row; rows in the order of
/// their first span. What the rank's thread does between spans is "rest" of the
/// row "compute".
std::vector<TimeSpent> TimesOf(const TracedStep& step);

/// Traces what its rank does from now on, as the rank's event sink; other
/// events go to the sink that was there.
class StepTracer final : public EventSink {
 public:
  /// \param context of the rank; outlives this.
  explicit StepTracer(RankContext& context);
  ~StepTracer() override;
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  void Write(const LogEvent& event) override;
  bool wants_spans() const override { return true; }

  /// Ends it. Call once, after RankContext::Synchronize.
  TracedStep Finish(int64_t step);

 private:
  void Sample();

  RankContext& context_;
  EventSink* const next_;  ///< May be null.
  SpanLog spans_;
  std::vector<MemorySample> memory_;
  bool is_finished_ = false;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_STEP_TRACE_H_
