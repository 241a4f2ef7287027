// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_
#define CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_

/// \file
/// StepSeries: measurements of a run by step, in bounded memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/examples/metrics.h"

namespace crosshatch::examples {

/// A point for several consecutive steps: means of most values. The learning
/// rate and the evaluation are the last ones.
struct SeriesPoint {
  int64_t step = 0;   ///< The last of the steps, from 1.
  int64_t count = 0;  ///< Number of steps.
  std::optional<double> loss;
  std::optional<double> grad_norm;
  double lr = 0;
  double tokens_per_s = 0;
  std::optional<double> eval_loss;  ///< The last one of these steps.
};

/// The points of a run. If they would exceed `most`, merges neighbours, so that
/// the size of the page is bounded.
class StepSeries {
 public:
  explicit StepSeries(size_t most = 1200) : most_(most) {}

  void Add(const StepMetrics& metrics);
  const std::vector<SeriesPoint>& points() const { return points_; }

  /// Returns a JSON object for FromJson.
  std::string ToJson() const;
  /// Returns the points of steps up to `last_step` from ToJson's result. Omits
  /// a point that extends beyond it, and everything that is not such an object.
  static StepSeries FromJson(const std::string& json, int64_t last_step);

 private:
  void Halve();

  size_t most_;
  int64_t stride_ = 1;  ///< Steps per point.
  std::vector<SeriesPoint> points_;
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_STEP_SERIES_H_
