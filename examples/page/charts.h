// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_CHARTS_H_
#define CROSSHATCH_EXAMPLES_PAGE_CHARTS_H_

/// \file
/// Charts as SVG: lines over steps, and memory by class over a step. Colors are
/// classes and variables of the page's style sheet (run_page.cc): --c0, --c1
/// and so on.

#include <string>
#include <utility>
#include <vector>

#include "crosshatch/examples/page/step_trace.h"
#include "crosshatch/tensor/allocator.h"

namespace crosshatch::examples {

struct Line {
  std::string name;  ///< Shown where a chart has several.
  int color = 0;
  std::vector<std::pair<double, double>> points;  ///< In the order of x.
};

struct LineChartOptions {
  /// The values' axis begins at 0.
  bool from_zero = false;
  /// Powers of ten are as far apart as others; values above 0.
  bool logarithmic = false;
};

/// A chart of values over steps; "" where there are none.
std::string LineChart(const std::vector<Line>& lines,
                      const LineChartOptions& options = {});

/// Bytes of each class over the step, one on the other, with the highest point
/// marked; "" without samples.
std::string MemoryChart(const TracedStep& step);

/// The classes' names beside their colors, with their peaks.
std::string MemoryLegend(const MemoryStats& stats);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_CHARTS_H_
