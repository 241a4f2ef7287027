// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_IMPLICIT_REDISTRIBUTION_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_IMPLICIT_REDISTRIBUTION_H_

/// \file
/// What becomes of hidden communication: inputs of ops, and gradients, that
/// have to be redistributed although nobody asked for it.

#include <cstdint>

namespace crosshatch {

enum class ImplicitRedistribution : uint8_t {
  /// It happens. Counts and the event log show it.
  kAllow,
  /// It happens, and standard error names the op and the plan: once for each
  /// rank, op and plan.
  kWarn,
  /// A failed check, which names the op and the plan.
  kForbid,
};

/// What the innermost scope of the rank says; kAllow outside of all.
ImplicitRedistribution CurrentImplicitRedistribution();

/// Sets what becomes of every implicit redistribution of the rank that
/// communicates; those that only take a part of what a rank holds are free in
/// any mode. Scopes nest: the innermost counts.
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
