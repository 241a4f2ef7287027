// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_SCHEDULE_H_
#define CROSSHATCH_NN_OPTIM_SCHEDULE_H_

/// \file
/// Learning rates as functions of the step: they have no state, so a run that
/// goes on at step k has the rates that it would have had.
///
///     optimizer.set_lr(schedule.At(step));

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace crosshatch::nn {

/// A warmup from near 0 to `peak`, then a way down to `last`.
struct Schedule {
  enum class Shape : uint8_t {
    kConstant,  ///< Stays at the peak.
    kLinear,    ///< In a straight line.
    kCosine,    ///< By half a turn of the cosine.
  };
  Shape shape = Shape::kConstant;
  double peak = 0;     ///< Finite, at least 0, as last.
  double last = 0;     ///< Where kLinear and kCosine end, and stay.
  int64_t warmup = 0;  ///< Steps; at least 0.
  int64_t steps = 0;   ///< The run's, at least as many; kConstant needs none.

  /// The rate of `step`, from 0. In the warmup it is peak * (step + 1) /
  /// warmup, so that no step is lost on a rate of 0; at step `warmup` it is
  /// `peak`, and `last` at step `steps`, the one after the run.
  /// \checks Check, and that `step` is at least 0.
  double At(int64_t step) const;

  /// \error kInvalidArgument naming what makes no schedule.
  absl::Status Check() const;
};

/// "constant", "linear" or "cosine".
/// \error kInvalidArgument naming these.
absl::StatusOr<Schedule::Shape> ParseScheduleShape(const std::string& name);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_SCHEDULE_H_
