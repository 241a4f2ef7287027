// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_SPAN_LOG_H_
#define CROSSHATCH_EXAMPLES_SPAN_LOG_H_

/// \file
/// SpanLog: records the time spans of work on the streams of one rank.

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"

namespace crosshatch::examples {

/// A span of time in which a stream does some work.
struct Span {
  std::string what;     ///< "forward", "op", "collective", ...
  std::string subject;  ///< "layers.0", "matmul", "all_reduce tp", ...
  std::string row;      ///< The stream's name.
  double begin_us;      ///< Since the log's start.
  double end_us;        ///< Negative: still open.
};

/// Records the span events of one rank.
class SpanLog final : public EventSink {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SpanLog(Clock::time_point start) : start_(start) {}

  /// Records a span event; ignores other events.
  /// \threadsafety any thread.
  void Write(const LogEvent& event) override;
  bool wants_spans() const override { return true; }

  double MicrosecondsNow() const;
  /// Returns the spans ordered by their beginnings. Spans of a row nest. Call
  /// it while no stream of the rank has work.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  const Clock::time_point start_;
  std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SPAN_LOG_H_
