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
  std::string name;  ///< Shown if a chart has several.
  int color = 0;
  std::vector<std::pair<double, double>> points;  ///< Sorted by x.
};

struct LineChartOptions {
  bool from_zero = false;
  /// Whether the value axis is logarithmic. Draws only values above 0.
  bool logarithmic = false;
};

/// Returns a chart of values over steps; "" without values.
std::string LineChart(const std::vector<Line>& lines,
                      const LineChartOptions& options = {});

/// Returns a stacked chart of the bytes of each class over the step, with a
/// mark at the peak; "" without samples.
std::string MemoryChart(const TracedStep& step);

/// Returns the names, colors and peaks of the classes.
std::string MemoryLegend(const MemoryStats& stats);

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_CHARTS_H_
