// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_

/// \file
/// What a piece of a program redistributes, as text:
///
///     RedistributeTrace trace;
///     Tensor loss = Loss(model.Forward(tokens));
///     std::cout << trace.ToString();
///
///     explicit  [S(0)] -> [R]  4096 bytes
///     implicit  [P(sum)] -> [R]  1024 bytes  exp
///     op        [P(sum)] -> [R]  1024 bytes  settle
///
/// Implicit ones are for inputs of an op, named last, that lay otherwise than
/// the op's rule asks; those of an op are its own work, or the gradient of a
/// redistribution (comm_origin.h). Those that only take a part of what the rank
/// holds have 0 bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"

namespace crosshatch {

class RankContext;

/// Writes down the rank's redistributions while it lives, in the order of
/// issue. Whatever else is logged goes on to the sink that was there before.
/// Traces nest. \threadsafety the rank's thread only.
class RedistributeTrace final : public EventSink {
 public:
  struct Entry {
    CommOrigin::Kind cause = CommOrigin::Kind::kExplicit;
    /// "[S(0)] -> [R]"; between meshes with these.
    std::string layouts;
    /// The op that it is for or of; empty for an explicit one.
    std::string op;
    /// Received by the rank that receives most.
    int64_t bytes = 0;

    /// One line of the text.
    std::string ToString() const;
  };

  RedistributeTrace();
  ~RedistributeTrace() override;
  RedistributeTrace(const RedistributeTrace&) = delete;
  RedistributeTrace& operator=(const RedistributeTrace&) = delete;

  void Write(const LogEvent& event) override;

  const std::vector<Entry>& entries() const { return entries_; }
  /// A line for each entry.
  std::string ToString() const;

 private:
  RankContext& context_;
  EventSink* const next_;
  std::vector<Entry> entries_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
