// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_TRACE_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_TRACE_H_

/// \file
/// StepTracer: records the spans and the memory of one step of one rank.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/examples/span_log.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::examples {

/// Memory in use after a change.
struct MemorySample {
  double us = 0;  ///< Since the beginning of the step.
  std::array<int64_t, kNumMemoryClasses> bytes = {};
};

/// A recorded step.
struct TracedStep {
  int64_t step = 0;  ///< From 1; 0: no step.
  int rank = 0;
  /// Whether the trace is of a dry run. Its times are those of issuing work.
  bool dry = false;
  double us = 0;  ///< The duration.
  std::vector<Span> spans;
  std::vector<MemorySample> memory;
};

/// Records a step as the event sink of its rank. Forwards other events to the
/// previous sink.
class StepTracer final : public EventSink {
 public:
  /// \param context the rank's; must outlive this object.
  explicit StepTracer(RankContext& context);
  ~StepTracer() override;
  StepTracer(const StepTracer&) = delete;
  StepTracer& operator=(const StepTracer&) = delete;

  void Write(const LogEvent& event) override;
  bool wants_spans() const override { return true; }

  /// Ends the recording. Call it once, after RankContext::Synchronize.
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
