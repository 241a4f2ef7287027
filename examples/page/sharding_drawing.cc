// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/page/sharding_drawing.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/examples/page/svg.h"
#include "crosshatch/examples/parameter_kinds.h"
#include "crosshatch/examples/report.h"

namespace crosshatch::examples {
namespace {

constexpr int kColors = 8;

std::optional<Box> BoxOn(const Tensor& data, int rank) {
  if (!data.is_distributed()) return WholeBox(data.sizes());
  const Layout& layout = LayoutOf(data);
  const std::optional<MeshCoordinate> at = layout.mesh().CoordinateOf(rank);
  if (!at.has_value()) return std::nullopt;
  return layout.LocalBox(data.sizes(), *at);
}

/// Returns a picture of the first two dims. A vector is a column, like the rows
/// of its matrix.
std::string Picture(const Shape& sizes, const std::optional<Box>& box,
                    int color) {
  constexpr double kHeight = 22;
  const double width = sizes.size() > 1 ? 34 : 9;
  std::string svg =
      absl::StrCat("<svg width=\"", width + 2, "\" height=\"", kHeight + 2,
                   "\"><rect class=\"whole\" x=\"1\" y=\"1\" width=\"", width,
                   "\" height=\"", kHeight, "\"/>");
  if (box.has_value() && !box->empty()) {
    const auto along = [&](size_t dim, double length) {
      const bool is_there = dim < sizes.size() && sizes[dim] > 0;
      const double unit =
          is_there ? length / static_cast<double>(sizes[dim]) : length;
      return is_there ? std::pair(static_cast<double>(box->offsets[dim]) * unit,
                                  static_cast<double>(box->sizes[dim]) * unit)
                      : std::pair(0.0, unit);
    };
    const auto [y, tall] = along(0, kHeight);
    const auto [x, wide] = along(1, width);
    absl::StrAppend(&svg, "<rect x=\"", FormatCoordinate(1 + x), "\" y=\"",
                    FormatCoordinate(1 + y), "\" width=\"",
                    FormatCoordinate(std::max(wide, 0.8)), "\" height=\"",
                    FormatCoordinate(std::max(tall, 0.8)),
                    "\" style=\"fill:var(--c", color, ")\"><title>",
                    ToString(*box), "</title></rect>");
  }
  return svg + "</svg>";
}

/// Returns for each box the index of the first equal one among distinct boxes,
/// as a color.
std::vector<int> ColorsOf(const std::vector<std::optional<Box>>& boxes) {
  std::vector<std::string> seen;
  std::vector<int> colors;
  for (const std::optional<Box>& box : boxes) {
    const std::string text = box.has_value() ? ToString(*box) : "";
    const auto found = std::find(seen.begin(), seen.end(), text);
    colors.push_back(static_cast<int>(found - seen.begin()) % kColors);
    if (found == seen.end()) seen.push_back(text);
  }
  return colors;
}

}  // namespace

ShardingDrawing DrawShardings(nn::Module& model, const MeshLayout& mesh,
                              int most) {
  ShardingDrawing drawing = {.mesh = mesh.ToString(), .ranks = mesh.size()};
  for (int i = 0; i < std::min(most, mesh.size()); ++i) {
    const MeshCoordinate at = mesh.CoordinateAt(i);
    std::string place;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      absl::StrAppend(&place, axis > 0 ? " " : "", mesh.axis_name(axis), " ",
                      at[static_cast<size_t>(axis)]);
    }
    drawing.columns.emplace_back(mesh.ranks()[static_cast<size_t>(i)],
                                 std::move(place));
  }
  for (const ParameterKind& kind : ParameterKinds(model)) {
    DrawnKind drawn = {kind.name, kind.layout, kind.sizes, kind.count, {}};
    for (const auto& [rank, place] : drawing.columns) {
      drawn.boxes.push_back(BoxOn(kind.first->data(), rank));
    }
    drawing.kinds.push_back(std::move(drawn));
  }
  return drawing;
}

std::string ToHtml(const ShardingDrawing& drawing) {
  std::string html =
      "<table class=\"data shards\"><tr><th>parameters</th><th "
      "class=\"n\">shape</th><th class=\"n\">times</th><th>layout</th>";
  for (const auto& [rank, place] : drawing.columns) {
    absl::StrAppend(&html, "<th class=\"rank\">", rank, "<small>",
                    Escaped(place), "</small></th>");
  }
  html += "</tr>";
  for (const DrawnKind& kind : drawing.kinds) {
    absl::StrAppend(&html, "<tr><td>", Escaped(kind.name),
                    "</td><td class=\"n\">", ToString(kind.sizes),
                    "</td><td class=\"n\">", kind.count, "</td><td>",
                    Escaped(kind.layout), "</td>");
    const std::vector<int> colors = ColorsOf(kind.boxes);
    for (size_t i = 0; i < kind.boxes.size(); ++i) {
      absl::StrAppend(&html, "<td class=\"rank\">",
                      Picture(kind.sizes, kind.boxes[i], colors[i]), "</td>");
    }
    html += "</tr>";
  }
  html += "</table>";
  const auto drawn = static_cast<int64_t>(drawing.columns.size());
  if (drawn < drawing.ranks) {
    absl::StrAppend(&html, "<p class=\"note\">The first ", drawn, " of ",
                    FormatCount(drawing.ranks), " ranks.</p>");
  }
  return html;
}

}  // namespace crosshatch::examples
