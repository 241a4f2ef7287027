// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_

/// \file
/// CommOrigin: why a rank communicates. An event sink may query it while it
/// receives a collective.

#include <cstdint>

#include "crosshatch/dtensor/redistribution/step.h"

namespace crosshatch {

struct CommOrigin {
  enum class Kind : uint8_t {
    /// Not caused by distributed tensors: FSDP, a checkpoint, the user's code.
    kOther,
    /// A redistribution that the program requested.
    kExplicit,
    /// A redistribution of an op's input to the layout that the op's rule
    /// needs, or of a gradient to its leaf's layout.
    kImplicit,
    /// Part of an op, such as a loss over split classes or the pending
    /// reductions that a statistic performs; the gradient of a redistribution;
    /// the sum of a leaf's gradient over ranks that all use the leaf.
    kOp,
  };

  Kind kind = Kind::kOther;
  /// The op, e.g. "matmul"; "redistribute" for kExplicit, null for kOther.
  const char* op = nullptr;
  /// Added to errors of the collective, besides its label; null for nothing.
  const char* about = nullptr;

  static CommOrigin Explicit() { return {Kind::kExplicit, "redistribute"}; }
  static CommOrigin Implicit(const char* op) { return {Kind::kImplicit, op}; }
  static CommOrigin Op(const char* op) { return {Kind::kOp, op}; }
};

/// Returns "other", "explicit", "implicit" or "op".
const char* Name(CommOrigin::Kind kind);

/// Returns the origin of what the calling rank issues now.
CommOrigin CurrentCommOrigin();

/// Sets the origin of the rank's collectives during its lifetime. Scopes nest;
/// the innermost counts.
/// \threadsafety The rank's thread only.
class CommOriginScope {
 public:
  explicit CommOriginScope(const CommOrigin& origin);
  ~CommOriginScope();
  CommOriginScope(const CommOriginScope&) = delete;
  CommOriginScope& operator=(const CommOriginScope&) = delete;

 private:
  CommOrigin& current_;
  const CommOrigin previous_;
};

/// Redistributions of a rank so far, including those that only take a part of
/// what the rank holds.
struct RedistributeCounts {
  /// Calls of Redistribute and of functions based on it.
  int64_t explicit_calls = 0;
  /// Of op inputs to the layout that the rule needs, and of gradients to their
  /// leaves' layouts.
  int64_t implicit_calls = 0;
  /// Within ops (CommOrigin::Kind::kOp): pending reductions that they perform,
  /// and gradients of redistributions.
  int64_t op_calls = 0;
  /// The total cost.
  RedistributeCost cost;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
