// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
#define CROSSHATCH_EXAMPLES_CHROME_TRACE_H_

/// \file
/// The spans of a run as a trace in the JSON format of Chrome's tracing, which
/// ui.perfetto.dev and chrome://tracing open: a process for each rank, a row
/// for each stream.

#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"

namespace crosshatch::examples {

/// The spans of some ranks.
class ChromeTrace {
 public:
  /// \param ranks the sinks to have.
  explicit ChromeTrace(int ranks);

  /// For rank i at [i]; as LocalOptions::sinks wants them.
  std::vector<EventSink*> sinks();

  /// The whole trace so far, in JSON. Call when no rank is running.
  std::string ToJson() const;

 private:
  struct Span {
    std::string what;
    std::string subject;
    std::string row;
    double begin_us;
    double end_us;  ///< Negative: still open.
  };

  class RankSink final : public EventSink {
   public:
    explicit RankSink(std::chrono::steady_clock::time_point start)
        : start_(start) {}
    /// \threadsafety any thread.
    void Write(const LogEvent& event) override;
    bool wants_spans() const override { return true; }
    const std::vector<Span>& spans() const { return spans_; }

   private:
    const std::chrono::steady_clock::time_point start_;
    std::mutex mutex_;
    std::vector<Span> spans_;  // In the order of their beginnings.
  };

  std::deque<RankSink> sinks_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
