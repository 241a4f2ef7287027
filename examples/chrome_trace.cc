// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/chrome_trace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace crosshatch::examples {
namespace {

using nlohmann::json;

json NameOf(const char* kind, int rank, int row, const std::string& name) {
  return {{"ph", "M"},
          {"name", kind},
          {"pid", rank},
          {"tid", row},
          {"args", {{"name", name}}}};
}

}  // namespace

ChromeTrace::ChromeTrace(int ranks) {
  const auto start = SpanLog::Clock::now();
  for (int r = 0; r < ranks; ++r) sinks_.emplace_back(start);
}

std::vector<EventSink*> ChromeTrace::sinks() {
  std::vector<EventSink*> sinks;
  for (SpanLog& sink : sinks_) sinks.push_back(&sink);
  return sinks;
}

std::string ChromeTrace::ToJson() const {
  json events = json::array();
  int rank = 0;
  for (const SpanLog& sink : sinks_) {
    events.push_back(
        NameOf("process_name", rank, 0, absl::StrCat("rank ", rank)));
    std::vector<std::string> rows;
    for (const Span& span : sink.spans()) {
      const auto found = std::find(rows.begin(), rows.end(), span.row);
      const auto row = static_cast<int>(found - rows.begin());
      if (found == rows.end()) {
        rows.push_back(span.row);
        events.push_back(NameOf("thread_name", rank, row, span.row));
      }
      if (span.end_us < 0) continue;
      events.push_back({{"ph", "X"},
                        {"name", absl::StrCat(span.what, " ", span.subject)},
                        {"cat", span.what},
                        {"pid", rank},
                        {"tid", row},
                        {"ts", span.begin_us},
                        {"dur", span.end_us - span.begin_us},
                        {"args", {{"group", span.subject}}}});
    }
    ++rank;
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(1);
}

}  // namespace crosshatch::examples
