// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_

/// \file
/// Why a rank communicates (CommOrigin), and whether it may do so implicitly.
/// An event sink may query the origin while it receives a collective.

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

/// What happens to implicit redistributions that communicate: those of op
/// inputs and gradients that the program did not request.
enum class ImplicitRedistribution : uint8_t {
  /// Performs it. Counts and the event log include it.
  kAllow,
  /// Performs it and prints the op and the plan to standard error, once for
  /// each rank, op and plan.
  kWarn,
  /// Fails a check that names the op and the plan.
  kForbid,
};

/// Returns the mode of the rank's innermost scope; kAllow outside of all.
ImplicitRedistribution CurrentImplicitRedistribution();

/// Sets the mode for the rank's implicit redistributions that communicate.
/// Those that only take a part of what a rank holds are allowed in any mode.
/// Scopes nest; the innermost counts.
class ImplicitRedistributionScope {
 public:
  explicit ImplicitRedistributionScope(ImplicitRedistribution mode);
  ~ImplicitRedistributionScope();
  ImplicitRedistributionScope(const ImplicitRedistributionScope&) = delete;
  ImplicitRedistributionScope& operator=(const ImplicitRedistributionScope&) =
      delete;

 private:
  ImplicitRedistribution& current_;
  const ImplicitRedistribution previous_;
};

/// ImplicitRedistributionScope(ImplicitRedistribution::kForbid).
class ForbidImplicitRedistribution : public ImplicitRedistributionScope {
 public:
  ForbidImplicitRedistribution()
      : ImplicitRedistributionScope(ImplicitRedistribution::kForbid) {}
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_COMM_ORIGIN_H_
