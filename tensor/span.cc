// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/span.h"

#include "crosshatch/base/event_sink.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

void Mark(EventKind kind, Stream& stream, const char* what,
          const std::string& subject) {
  EventSink* const sink = RankContext::Current().sink();
  if (sink == nullptr || !sink->wants_spans()) return;
  stream.LaunchHost(
      [sink, kind, what, subject, where = stream.name()](KernelContext&) {
        sink->Write(
            {.kind = kind, .what = what, .subject = &subject, .where = &where});
      });
}

}  // namespace

void BeginSpan(Stream& stream, const char* what, const std::string& subject) {
  Mark(EventKind::kSpanBegin, stream, what, subject);
}

void EndSpan(Stream& stream, const char* what, const std::string& subject) {
  Mark(EventKind::kSpanEnd, stream, what, subject);
}

}  // namespace crosshatch
