// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
#define CROSSHATCH_EXAMPLES_CHROME_TRACE_H_

/// \file
/// ChromeTrace: the spans of a run in the JSON trace format of Chrome, which
/// ui.perfetto.dev and chrome://tracing open. Each rank is a process, each
/// stream a row.

#include <deque>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/examples/span_log.h"

namespace crosshatch::examples {

/// Collects the spans of several ranks.
class ChromeTrace {
 public:
  /// \param ranks number of sinks.
  explicit ChromeTrace(int ranks);

  /// Returns the sink of each rank, for JobOptions::sinks.
  std::vector<EventSink*> sinks();

  /// Returns the trace so far as JSON. Call it while no rank is running.
  std::string ToJson() const;

 private:
  std::deque<SpanLog> sinks_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
