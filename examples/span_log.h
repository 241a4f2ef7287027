// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_SPAN_LOG_H_
#define CROSSHATCH_EXAMPLES_SPAN_LOG_H_

/// \file
/// The spans of one rank: from when to when its streams work on what.

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"

namespace crosshatch::examples {

struct Span {
  std::string what;     ///< "forward", "op", "collective", ...
  std::string subject;  ///< "layers.0", "matmul", "all_reduce tp", ...
  std::string row;      ///< The stream's name.
  double begin_us;      ///< Since the log's start.
  double end_us;        ///< Negative: still open.
};

class SpanLog final : public EventSink {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SpanLog(Clock::time_point start) : start_(start) {}

  /// Takes the spans among the events.
  /// \threadsafety any thread.
  void Write(const LogEvent& event) override;
  bool wants_spans() const override { return true; }

  double MicrosecondsNow() const;
  /// In the order of their beginnings. Those of a row nest. Call when no stream
  /// of the rank is at work.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  const Clock::time_point start_;
  std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_SPAN_LOG_H_
