// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_IMPLICIT_REDISTRIBUTION_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_IMPLICIT_REDISTRIBUTION_H_

/// \file
/// Controls implicit redistributions: those of op inputs and gradients that the
/// program did not request.

#include <cstdint>

namespace crosshatch {

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

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_IMPLICIT_REDISTRIBUTION_H_
