// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_MPI_ENGINE_SPAN_H_
#define CROSSHATCH_COMM_MPI_ENGINE_SPAN_H_

/// \file
/// Spans within those of collectives: what the engine spends beside moving.

#include <string>

#include "crosshatch/base/event_sink.h"

namespace crosshatch::internal {

/// Where a stream's spans go. What it points to outlives it.
struct SpanRow {
  /// Null where nobody wants spans.
  EventSink* sink = nullptr;
  /// The stream's.
  const std::string* name = nullptr;
};

/// While there is one, the stream is at `what`. Costs one comparison with null
/// where nobody wants spans.
/// \threadsafety one thread, the stream's.
class EngineSpan {
 public:
  /// \param what a literal.
  EngineSpan(const SpanRow& row, const char* what) : row_(row), what_(what) {
    Mark(EventKind::kSpanBegin);
  }
  ~EngineSpan() { Mark(EventKind::kSpanEnd); }
  EngineSpan(const EngineSpan&) = delete;
  EngineSpan& operator=(const EngineSpan&) = delete;

 private:
  void Mark(EventKind kind) const {
    if (row_.sink == nullptr) return;
    const std::string subject;
    row_.sink->Write(
        {.kind = kind, .what = what_, .subject = &subject, .where = row_.name});
  }

  const SpanRow row_;
  const char* const what_;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_MPI_ENGINE_SPAN_H_
