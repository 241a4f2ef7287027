// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/span_log.h"

#include <algorithm>

namespace crosshatch::examples {

double SpanLog::MicrosecondsNow() const {
  return std::chrono::duration<double, std::micro>(Clock::now() - start_)
      .count();
}

void SpanLog::Write(const LogEvent& event) {
  const bool begins = event.kind == EventKind::kSpanBegin;
  if (!begins && event.kind != EventKind::kSpanEnd) return;
  const double now_us = MicrosecondsNow();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (begins) {
    spans_.push_back({event.what, *event.subject, *event.where, now_us, -1});
    return;
  }
  const auto open =
      std::find_if(spans_.rbegin(), spans_.rend(), [&](const Span& span) {
        return span.end_us < 0 && span.row == *event.where &&
               span.what == event.what && span.subject == *event.subject;
      });
  if (open != spans_.rend()) open->end_us = now_us;
}

}  // namespace crosshatch::examples
