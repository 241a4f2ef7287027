// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_

/// \file
/// Records the redistributions of a part of a program as text:
///
///     RedistributeTrace trace;
///     Tensor loss = Loss(model.Forward(tokens));
///     std::cout << trace.ToString();
///
///     explicit  [S(0)] -> [R]  4096 bytes
///     implicit  [P(sum)] -> [R]  1024 bytes  exp
///     op        [P(sum)] -> [R]  1024 bytes  reduce_partial
///
/// Implicit ones change an input of an op, named last, to the layout that the
/// op's rule needs. Those of kind op are part of an op, or the gradient of a
/// redistribution (comm_origin.h). Those that only take a part of what the rank
/// holds have 0 bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/base/event_sink.h"
#include "crosshatch/dtensor/redistribution/comm_origin.h"

namespace crosshatch {

class RankContext;

/// Records the rank's redistributions during its lifetime, in the order of
/// issue. All events are forwarded to the previous sink. Traces nest.
/// \threadsafety The rank's thread only.
class RedistributeTrace final : public EventSink {
 public:
  struct Entry {
    CommOrigin::Kind cause = CommOrigin::Kind::kExplicit;
    /// "[S(0)] -> [R]"; with the meshes if they differ.
    std::string layouts;
    /// The op that caused it; empty for an explicit one.
    std::string op;
    /// Bytes received by the rank that receives the most.
    int64_t bytes = 0;

    /// Returns one line of the text.
    std::string ToString() const;
  };

  RedistributeTrace();
  ~RedistributeTrace() override;
  RedistributeTrace(const RedistributeTrace&) = delete;
  RedistributeTrace& operator=(const RedistributeTrace&) = delete;

  void Write(const LogEvent& event) override;

  const std::vector<Entry>& entries() const { return entries_; }
  /// Returns one line for each entry.
  std::string ToString() const;

 private:
  RankContext& context_;
  EventSink* const next_;
  std::vector<Entry> entries_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTE_TRACE_H_
