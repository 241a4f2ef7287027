// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EXAMPLES_PAGE_SVG_H_
#define CROSSHATCH_EXAMPLES_PAGE_SVG_H_

/// \file
/// Pieces of SVG and HTML as text.

#include <string>
#include <vector>

namespace crosshatch::examples {

/// `text` with what HTML takes for its own escaped.
std::string Escaped(const std::string& text);

/// "12.5": a coordinate, of a tenth's precision.
std::string Place(double value);

/// "1.2", "0.0003", "45.3K", "1.2M": short, for axes and tiles.
std::string Short(double value);

/// Round numbers from at most `low` to at least `high`, about `count` of them,
/// ascending.
std::vector<double> Ticks(double low, double high, int count);

/// Where values of [from, to] come to lie in [begin, end] of a drawing.
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
