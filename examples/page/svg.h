// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_SVG_H_
#define CROSSHATCH_EXAMPLES_PAGE_SVG_H_

/// \file
/// Formats pieces of SVG and HTML.

#include <string>
#include <vector>

namespace crosshatch::examples {

/// Returns `text` with HTML's special characters escaped.
std::string Escaped(const std::string& text);

/// Formats a coordinate with one decimal: "12.5".
std::string FormatCoordinate(double value);

/// Formats a short number for axes and tiles: "1.2", "0.0003", "45.3K", "1.2M".
std::string Short(double value);

/// Returns about `count` round numbers, ascending, from at most `low` to at
/// least `high`.
std::vector<double> Ticks(double low, double high, int count);

/// Maps values of [from, to] to [begin, end] of a drawing.
struct Scale {
  double from = 0;
  double to = 1;
  double begin = 0;
  double end = 1;

  double At(double value) const {
    return to == from ? begin
                      : begin + (value - from) / (to - from) * (end - begin);
  }
};

}  // namespace crosshatch::examples

#endif  // CROSSHATCH_EXAMPLES_PAGE_SVG_H_
