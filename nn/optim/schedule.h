// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_SCHEDULE_H_
#define CROSSHATCH_NN_OPTIM_SCHEDULE_H_

/// \file
/// Learning rates as functions of the step. They have no state, so a run that
/// resumes at step k has the same rates as an uninterrupted one.
///
///     optimizer.set_lr(schedule.At(step));

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace crosshatch::nn {

/// A warmup from near 0 to `peak`, then a decay to `last`.
struct Schedule {
  enum class Shape : uint8_t {
    kConstant,  ///< Stays at the peak.
    kLinear,    ///< Decays linearly.
    kCosine,    ///< Decays along half a period of the cosine.
  };
  Shape shape = Shape::kConstant;
  double peak = 0;     ///< Finite, at least 0, as last.
  double last = 0;     ///< The final value of kLinear and kCosine.
  int64_t warmup = 0;  ///< Steps; at least 0.
  int64_t steps = 0;   ///< Of the run, at least warmup; kConstant needs none.

  /// Returns the rate of `step`, from 0. In the warmup it is peak * (step + 1)
  /// / warmup, so no step has a rate of 0; at step `warmup` it is `peak`, and
  /// at step `steps`, the one after the run, `last`.
  /// \checks Check, and that `step` is at least 0.
  double At(int64_t step) const;

  /// \error kInvalidArgument naming an invalid field.
  absl::Status Check() const;
};

/// Parses "constant", "linear" or "cosine".
/// \error kInvalidArgument naming these.
absl::StatusOr<Schedule::Shape> ParseScheduleShape(const std::string& name);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_SCHEDULE_H_
