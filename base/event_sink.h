// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_BASE_EVENT_SINK_H_
#define CROSSHATCH_BASE_EVENT_SINK_H_

/// \file
/// EventSink: receives the log of a run: every collective, allocation and
/// change of FSDP state, in the order of issue. Tests compare the text with
/// goldens, the timeline example turns it into a trace, and a dry run writes
/// the same log as a real run.

#include <cstdint>
#include <string>

namespace crosshatch {

/// Kinds of events.
enum class EventKind : uint8_t {
  kCollective,
  kAllocate,
  kRelease,
  kFsdp,
  kRedistribute,
  kSpanBegin,  ///< A piece of work begins on a stream (host clock).
  kSpanEnd,
};

/// One line of the log. The pointers are valid during EventSink::Write only.
struct LogEvent {
  EventKind kind;
  /// The action, e.g. "all_gather", "unshard", "allocate".
  const char* what;
  /// The object, e.g. the name of a group or parameter.
  const std::string* subject;
  /// The stream or mesh axis concerned; may be null.
  const std::string* where;
  /// Size of the payload in bytes; 0 if there is none.
  int64_t bytes = 0;
};

/// Receives the events of one rank. With no sink installed an event costs one
/// comparison with null.
/// \threadsafety Write is called on the rank's thread, except for kSpanBegin
///     and kSpanEnd, which come from the stream's own thread.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Write(const LogEvent& event) = 0;
  /// Whether kSpanBegin and kSpanEnd are written. Each costs a task on its
  /// stream.
  virtual bool wants_spans() const { return false; }
};

}  // namespace crosshatch

#endif  // CROSSHATCH_BASE_EVENT_SINK_H_
