// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
#define CROSSHATCH_EXAMPLES_CHROME_TRACE_H_

/// \file
/// The spans of a run as a trace in the JSON format of Chrome's tracing, which
/// ui.perfetto.dev and chrome://tracing open: a process for each rank, a row
/// for each stream.

#include <deque>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/examples/span_log.h"

namespace crosshatch::examples {

/// The spans of some ranks.
class ChromeTrace {
 public:
  /// \param ranks the sinks to have.
  explicit ChromeTrace(int ranks);

  /// For rank i at [i]; as JobOptions::sinks takes them.
  std::vector<EventSink*> sinks();

  /// The whole trace so far, in JSON. Call when no rank is running.
  std::string ToJson() const;

 private:
  std::deque<SpanLog> sinks_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_CHROME_TRACE_H_
