// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/charts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "crosshatch/examples/page/svg.h"
#include "crosshatch/examples/report.h"

namespace crosshatch::examples {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 220;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 26;

std::string Begin() {
  return absl::StrCat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight,
                      "\" role=\"img\">");
}

/// Returns a line across the chart with a label for each tick of the value
/// axis.
template <typename Label>
std::string ValueAxis(const std::vector<double>& ticks, const Scale& y,
                      const Label& label) {
  std::string svg;
  for (const double tick : ticks) {
    const std::string at = FormatCoordinate(y.At(tick));
    absl::StrAppend(&svg, "<line class=\"grid\" x1=\"", kLeft, "\" x2=\"",
                    kWidth - kRight, "\" y1=\"", at, "\" y2=\"", at,
                    "\"/><text class=\"tick\" text-anchor=\"end\" x=\"",
                    kLeft - 7, "\" y=\"", FormatCoordinate(y.At(tick) + 4),
                    "\">", label(tick), "</text>");
  }
  return svg;
}

template <typename Label>
std::string LowerAxis(const std::vector<double>& ticks, const Scale& x,
                      const Label& label) {
  std::string svg;
  for (const double tick : ticks) {
    if (tick < x.from || tick > x.to) continue;
    absl::StrAppend(&svg, "<text class=\"tick\" text-anchor=\"middle\" x=\"",
                    FormatCoordinate(x.At(tick)), "\" y=\"", kHeight - 8, "\">",
                    label(tick), "</text>");
  }
  return svg;
}

/// Returns the position to draw: the logarithm on a logarithmic axis.
double Drawn(double value, const LineChartOptions& options) {
  return options.logarithmic ? std::log10(value) : value;
}

bool IsDrawn(double value, const LineChartOptions& options) {
  return std::isfinite(value) && (!options.logarithmic || value > 0);
}

std::string Drawing(const Line& line, const Scale& x, const Scale& y,
                    const LineChartOptions& options) {
  std::string points;
  std::string last;
  int count = 0;
  for (const auto& [step, value] : line.points) {
    if (!IsDrawn(value, options)) continue;
    ++count;
    last = absl::StrCat(FormatCoordinate(x.At(step)), ",",
                        FormatCoordinate(y.At(Drawn(value, options))));
    absl::StrAppend(&points, points.empty() ? "" : " ", last);
  }
  if (count == 0) return "";
  const size_t comma = last.find(',');
  return absl::StrCat("<polyline class=\"line\" style=\"stroke:var(--c",
                      line.color, ")\" points=\"", points,
                      "\"/><circle r=\"3.2\" style=\"fill:var(--c", line.color,
                      ")\" cx=\"", last.substr(0, comma), "\" cy=\"",
                      last.substr(comma + 1), "\"><title>", Escaped(line.name),
                      "</title></circle>");
}

std::string Names(const std::vector<Line>& lines) {
  std::string svg;
  double x = kLeft + 8;
  for (const Line& line : lines) {
    if (line.points.empty()) continue;
    absl::StrAppend(&svg, "<rect x=\"", x, "\" y=\"", kTop + 4,
                    "\" width=\"14\" height=\"3\" style=\"fill:var(--c",
                    line.color, ")\"/><text class=\"tick\" x=\"", x + 19,
                    "\" y=\"", kTop + 9, "\">", Escaped(line.name), "</text>");
    x += 40 + 7.0 * static_cast<double>(line.name.size());
  }
  return svg;
}

}  // namespace

std::string LineChart(const std::vector<Line>& lines,
                      const LineChartOptions& options) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double low = kNone;
  double high = -kNone;
  double first = kNone;
  double last = -kNone;
  int named = 0;
  for (const Line& line : lines) {
    named += line.points.empty() ? 0 : 1;
    for (const auto& [step, value] : line.points) {
      if (!IsDrawn(value, options)) continue;
      low = std::min(low, Drawn(value, options));
      high = std::max(high, Drawn(value, options));
      first = std::min(first, step);
      last = std::max(last, step);
    }
  }
  if (low == kNone) return "";
  if (options.from_zero) low = std::min(low, 0.0);
  const std::vector<double> ticks = Ticks(low, high, 4);
  const Scale y = {ticks.front(), ticks.back(), kHeight - kBottom, kTop};
  const Scale x = {first, last, kLeft, kWidth - kRight};
  std::string svg = Begin();
  svg += ValueAxis(ticks, y, [&](double tick) {
    return Short(options.logarithmic ? std::pow(10, tick) : tick);
  });
  std::vector<double> steps;
  for (const double tick : Ticks(first, last, 6)) {
    if (tick == std::floor(tick)) steps.push_back(tick);
  }
  svg += LowerAxis(steps, x, [](double tick) { return Short(tick); });
  for (const Line& line : lines) svg += Drawing(line, x, y, options);
  if (named > 1) svg += Names(lines);
  return svg + "</svg>";
}

std::string MemoryChart(const TracedStep& step) {
  if (step.memory.empty()) return "";
  // A dry run has no times, so all changes have the same width.
  const auto place = [&](size_t i) {
    return step.dry ? static_cast<double>(i) : step.memory[i].us / 1e3;
  };
  double most = 1;
  size_t peak = 0;
  for (size_t i = 0; i < step.memory.size(); ++i) {
    double total = 0;
    for (const int64_t bytes : step.memory[i].bytes) {
      total += static_cast<double>(bytes);
    }
    if (total > most) {
      most = total;
      peak = i;
    }
  }
  // Ticks are round numbers in the unit of the labels.
  double unit = 1;
  while (most / unit >= 1024) unit *= 1024;
  std::vector<double> ticks = Ticks(0, most / unit, 4);
  for (double& tick : ticks) tick *= unit;
  const Scale y = {0, ticks.back(), kHeight - kBottom, kTop};
  const Scale x = {0, place(step.memory.size() - 1), kLeft, kWidth - kRight};
  std::string svg = Begin();
  svg += ValueAxis(ticks, y, [](double tick) {
    return FormatBytes(static_cast<int64_t>(tick));
  });
  std::vector<double> below(step.memory.size(), 0);
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    // Bytes are constant until the next sample.
    std::string upper;
    std::string lower;
    bool has_any = false;
    for (size_t i = 0; i < step.memory.size(); ++i) {
      const auto bytes =
          static_cast<double>(step.memory[i].bytes[static_cast<size_t>(c)]);
      has_any = has_any || bytes > 0;
      const double next = place(i + 1 < step.memory.size() ? i + 1 : i);
      const std::string from = FormatCoordinate(x.At(place(i)));
      const std::string to = FormatCoordinate(x.At(next));
      const std::string high = FormatCoordinate(y.At(below[i] + bytes));
      const std::string low = FormatCoordinate(y.At(below[i]));
      absl::StrAppend(&upper, from, ",", high, " ", to, ",", high, " ");
      lower = absl::StrCat(to, ",", low, " ", from, ",", low, " ", lower);
      below[i] += bytes;
    }
    if (!has_any) continue;
    const std::string name = Name(static_cast<MemoryClass>(c));
    absl::StrAppend(&svg, "<polygon style=\"fill:var(--c", c, ")\" points=\"",
                    upper, lower, "\"><title>", name, "</title></polygon>");
  }
  absl::StrAppend(&svg, "<line class=\"mark\" x1=\"",
                  FormatCoordinate(x.At(place(peak))), "\" x2=\"",
                  FormatCoordinate(x.At(place(peak))), "\" y1=\"", kTop,
                  "\" y2=\"", kHeight - kBottom,
                  "\"><title>peak: ", FormatBytes(static_cast<int64_t>(most)),
                  "</title></line>");
  svg += LowerAxis(Ticks(0, x.to, 6), x, [&](double tick) {
    return absl::StrCat(Short(tick), step.dry ? "" : " ms");
  });
  return svg + "</svg>";
}

std::string MemoryLegend(const MemoryStats& stats) {
  std::string html = "<table class=\"legend\">";
  for (int c = 0; c < kNumMemoryClasses; ++c) {
    absl::StrAppend(
        &html, "<tr><td><i style=\"background:var(--c", c, ")\"></i>",
        Name(static_cast<MemoryClass>(c)), "</td><td class=\"n\">",
        FormatBytes(stats.peak[static_cast<size_t>(c)]), "</td></tr>");
  }
  absl::StrAppend(&html,
                  "<tr class=\"sum\"><td>total, at its peak</td><td "
                  "class=\"n\">",
                  FormatBytes(stats.peak_total), "</td></tr></table>");
  return html;
}

}  // namespace crosshatch::examples
