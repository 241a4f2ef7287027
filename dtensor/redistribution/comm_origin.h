// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_

/// \file
/// Why a rank communicates: what an event sink may ask while it receives a
/// collective.

#include <cstdint>

#include "crosshatch/dtensor/redistribution/step.h"

namespace crosshatch {

struct CommOrigin {
  enum class Kind : uint8_t {
    /// Not a distributed tensor's doing: FSDP, a checkpoint, the user's own.
    kOther,
    /// A redistribution that the program asked for.
    kExplicit,
    /// One of an op's input that lay otherwise than the op's rule asks, or of a
    /// gradient that lay otherwise than its leaf.
    kImplicit,
    /// Part of an op, such as a loss over split classes or the pending
    /// reductions that a statistic does; the gradient of a redistribution; the
    /// sum of a leaf's gradient over ranks that all use the leaf.
    kOp,
  };

  Kind kind = Kind::kOther;
  /// The op, e.g. "matmul"; "redistribute" for kExplicit, null for kOther.
  const char* op = nullptr;
  /// What an error of the collective says of it besides its label; null for
  /// nothing.
  const char* about = nullptr;

  static CommOrigin Explicit() { return {Kind::kExplicit, "redistribute"}; }
  static CommOrigin Implicit(const char* op) { return {Kind::kImplicit, op}; }
  static CommOrigin Op(const char* op) { return {Kind::kOp, op}; }
};

/// "other", "explicit", "implicit", "op".
const char* Name(CommOrigin::Kind kind);

/// The origin of what the calling rank issues now.
CommOrigin CurrentCommOrigin();

/// Says where the rank's collectives come from while it lives. Scopes nest: the
/// innermost counts. \threadsafety the rank's thread only.
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

/// What a rank has redistributed so far. Those that only take a part of what
/// the rank holds count too.
struct RedistributeCounts {
  /// Calls of Redistribute and of what is made of it.
  int64_t explicit_calls = 0;
  /// For inputs of ops that lay otherwise than the op's rule asks, and for
  /// gradients that lay otherwise than their leaves.
  int64_t implicit_calls = 0;
  /// Within ops (CommOrigin::Kind::kOp): pending reductions that they do, and
  /// gradients of redistributions.
  int64_t op_calls = 0;
  /// What all these cost.
  RedistributeCost cost;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
