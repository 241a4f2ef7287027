// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/step_timeline.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "crosshatch/examples/page/svg.h"

namespace crosshatch::examples {
namespace {

constexpr double kTimelineWidth = 1140;
constexpr double kTimelineLeft = 132;
constexpr double kTimelineRight = 10;
constexpr double kLevel = 15;  // The height of a span.
constexpr size_t kMostLevels = 5;
// Narrower spans are not visible.
constexpr double kMinWidth = 0.4;

/// A stream's spans by nesting depth.
struct Lane {
  std::string row;
  std::vector<std::vector<const Span*>> levels;
};

std::vector<Lane> LanesOf(const TracedStep& step) {
  std::vector<Lane> lanes;
  std::vector<std::vector<const Span*>> open;
  for (const Span& span : step.spans) {
    if (span.end_us < 0) continue;
    const auto lane =
        std::find_if(lanes.begin(), lanes.end(),
                     [&](const Lane& l) { return l.row == span.row; });
    const auto index = static_cast<size_t>(lane - lanes.begin());
    if (lane == lanes.end()) {
      lanes.push_back({span.row, {}});
      open.emplace_back();
    }
    std::vector<const Span*>& around = open[index];
    while (!around.empty() && around.back()->end_us <= span.begin_us) {
      around.pop_back();
    }
    const size_t level = around.size();
    around.push_back(&span);
    if (level >= kMostLevels) continue;
    Lane& own = lanes[index];
    if (own.levels.size() <= level) own.levels.resize(level + 1);
    own.levels[level].push_back(&span);
  }
  return lanes;
}

const char* ClassOf(const std::string& what) {
  for (const char* known :
       {"forward", "backward", "op", "collective", "wait"}) {
    if (what == known) return known;
  }
  if (what.rfind("copy", 0) == 0 || what == "all_gather" ||
      what == "reduce_scatter" || what == "all_reduce") {
    return "moves";
  }
  return "phase";
}

std::string Milliseconds(double us) {
  return absl::StrFormat("%.2f", us / 1e3);
}

std::string Drawing(const Span& span, const Scale& x, double y) {
  const double begin = x.At(span.begin_us);
  const double width = x.At(span.end_us) - begin;
  if (width < kMinWidth) return "";
  const std::string text =
      span.what == "op" || span.what == "collective"
          ? span.subject
          : absl::StrCat(span.what, span.subject.empty() ? "" : " ",
                         span.subject);
  std::string svg = absl::StrCat(
      "<g><title>", Escaped(text), ": ",
      Milliseconds(span.end_us - span.begin_us), " ms</title><rect class=\"s ",
      ClassOf(span.what), "\" x=\"", FormatCoordinate(begin), "\" y=\"", y,
      "\" width=\"", FormatCoordinate(width), "\" height=\"", kLevel - 1.5,
      "\"/>");
  constexpr double kLetter = 5.6;
  const auto fits = static_cast<size_t>(std::max(0.0, (width - 6) / kLetter));
  if (fits >= text.size()) {
    absl::StrAppend(&svg, "<text class=\"in\" x=\"",
                    FormatCoordinate(begin + 3), "\" y=\"", y + 10.5, "\">",
                    Escaped(text), "</text>");
  }
  return svg + "</g>";
}

}  // namespace

std::string StepTimeline(const TracedStep& step) {
  const std::vector<Lane> lanes = LanesOf(step);
  if (lanes.empty()) return "";
  const Scale x = {0, step.us, kTimelineLeft, kTimelineWidth - kTimelineRight};
  std::string body;
  double y = 8;
  for (const Lane& lane : lanes) {
    absl::StrAppend(&body, "<text class=\"tick\" text-anchor=\"end\" x=\"",
                    kTimelineLeft - 8, "\" y=\"", y + 11, "\">",
                    Escaped(lane.row), "</text><line class=\"grid\" x1=\"",
                    kTimelineLeft, "\" x2=\"", kTimelineWidth - kTimelineRight,
                    "\" y1=\"", y - 4, "\" y2=\"", y - 4, "\"/>");
    for (const auto& level : lane.levels) {
      for (const Span* span : level) body += Drawing(*span, x, y);
      y += kLevel;
    }
    y += 9;
  }
  for (const double tick : Ticks(0, step.us / 1e3, 8)) {
    if (tick * 1e3 > x.to) continue;
    absl::StrAppend(&body, "<text class=\"tick\" text-anchor=\"middle\" x=\"",
                    FormatCoordinate(x.At(tick * 1e3)), "\" y=\"", y + 10,
                    "\">", Short(tick), " ms</text>");
  }
  return absl::StrCat("<svg viewBox=\"0 0 ", kTimelineWidth, " ", y + 18,
                      "\" role=\"img\" class=\"wide\">", body, "</svg>");
}

std::string TimeTable(const TracedStep& step) {
  const std::vector<TimeSpent> times = TimesOf(step);
  if (times.empty()) return "";
  std::string html =
      "<table class=\"data\"><tr><th>stream</th><th>what</th><th "
      "class=\"n\">times</th><th class=\"n\">ms</th><th class=\"n\">of the "
      "step</th><th></th></tr>";
  std::string row;
  for (const TimeSpent& time : times) {
    const double share = step.us > 0 ? 100 * time.us / step.us : 0;
    absl::StrAppend(&html, "<tr><td>", time.row == row ? "" : Escaped(time.row),
                    "</td><td>", Escaped(time.what), "</td><td class=\"n\">",
                    time.calls, "</td><td class=\"n\">", Milliseconds(time.us),
                    "</td><td class=\"n\">", absl::StrFormat("%.1f %%", share),
                    "</td><td class=\"barcell\"><i style=\"width:",
                    FormatCoordinate(std::clamp(share, 0.0, 100.0)),
                    "%\"></i></td></tr>");
    row = time.row;
  }
  return html + "</table>";
}

}  // namespace crosshatch::examples
