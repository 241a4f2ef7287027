// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_

/// \file
/// What a run measured, step by step, in bounded memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/examples/metrics.h"

namespace crosshatch::examples {

/// Several steps, one after the other, as one point: means, but for the rate,
/// which is the last step's.
struct SeriesPoint {
  int64_t step = 0;   ///< The last of them, from 1.
  int64_t count = 0;  ///< Of steps.
  std::optional<double> loss;
  std::optional<double> grad_norm;
  double lr = 0;
  double tokens_per_s = 0;
  std::optional<double> eval_loss;  ///< The last one of these steps.
};

/// The points of a run. Where there would be more than `most`, neighbours
/// become one, so that a run of any length is a page of a size.
class StepSeries {
 public:
  explicit StepSeries(size_t most = 1200) : most_(most) {}

  void Add(const StepMetrics& metrics);
  const std::vector<SeriesPoint>& points() const { return points_; }

  /// A JSON object, from which FromJson makes the series again.
  std::string ToJson() const;
  /// The points of steps up to `last_step`. A point that goes beyond, and all
  /// of what is no such object, is left out.
  static StepSeries FromJson(const std::string& json, int64_t last_step);

 private:
  void Halve();

  size_t most_;
  int64_t stride_ = 1;  ///< Steps of a point.
  std::vector<SeriesPoint> points_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_
