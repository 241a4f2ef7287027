// SPDX-License-Identifier: Apache-2.0

/// \file
/// Checks the examples of docs/layouts.md: its fenced blocks named `layout` and
/// `plan`, in the form that the page explains. layouts_gradient_test runs those
/// named `gradient`.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crosshatch/docs/page_testutil.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "gtest/gtest.h"

namespace crosshatch::docs {
namespace {

constexpr char kPage[] = "docs/layouts.md";

std::string CoordinateText(const MeshCoordinate& at) {
  std::string text;
  for (int index : at) {
    absl::StrAppend(&text, text.empty() ? "(" : ",", index);
  }
  return text + ")";
}

// Prints a layout's example as the library would.
std::string Print(const Layout& layout, const Shape& shape) {
  std::string text =
      absl::StrCat(layout.mesh().ToString(), "  ", ToString(ShapeView(shape)),
                   "  ", layout.ToString(), "  ", layout.ToStringByDim(), "\n");
  for (int i = 0; i < layout.mesh().size(); ++i) {
    const MeshCoordinate at = layout.mesh().CoordinateAt(i);
    const Box box = layout.LocalBox(shape, at);
    absl::StrAppend(&text, CoordinateText(at), "  ", ToString(box), "  ",
                    ToString(ShapeView(layout.LocalShape(shape, at))), "\n");
  }
  return text;
}

TEST(LayoutsPageTest, LayoutsArePrintedAsTheyAre) {
  const std::vector<Fence> fences = FencesOf(kPage, "layout");
  ASSERT_GE(fences.size(), 10u);
  for (const Fence& fence : fences) {
    const std::vector<std::string> head = Fields(fence.lines[0]);
    ASSERT_EQ(head.size(), 4u) << fence.where;
    const MeshLayout mesh = ParseMesh(head[0]);
    const Layout layout = ParseByDim(mesh, head[3]);
    const Shape shape = ParseShape(head[1]);
    ASSERT_EQ(static_cast<int>(shape.size()), layout.ndim()) << fence.where;
    EXPECT_EQ(Print(layout, shape), fence.Text()) << fence.where;
    // Without units and cuts the placements determine the layout.
    if (head[3].find_first_of("/@") == std::string::npos) {
      EXPECT_EQ(ParseLayout(mesh, layout.ndim(), head[2]), layout)
          << fence.where;
    }
  }
}

// Parses the two layouts of the page's line "[S(0)] -> [R]: ...".
std::pair<std::string, std::string> Ends(const std::string& line) {
  const std::vector<std::string> sides =
      absl::StrSplit(line.substr(0, line.find(": ")), " -> ");
  return {sides.at(0), sides.at(1)};
}

TEST(LayoutsPageTest, PlansArePrintedAsTheyAre) {
  const std::vector<Fence> fences = FencesOf(kPage, "plan");
  ASSERT_GE(fences.size(), 4u);
  for (const Fence& fence : fences) {
    const std::vector<std::string> head = Fields(fence.lines[0]);
    ASSERT_EQ(head.size(), 2u) << fence.where;
    const MeshLayout mesh = ParseMesh(head[0]);
    ASSERT_EQ(head[1].substr(0, 3), "f32") << fence.where;
    const Shape shape = ParseShape(head[1].substr(3));
    std::string text = fence.lines[0] + "\n";
    for (size_t i = 1; i < fence.lines.size(); ++i) {
      if (fence.lines[i][0] == ' ') continue;  // A step.
      const auto [from, to] = Ends(fence.lines[i]);
      const int ndim = static_cast<int>(shape.size());
      const auto plan =
          PlanRedistribute(ParseLayout(mesh, ndim, from),
                           ParseLayout(mesh, ndim, to), shape, sizeof(float));
      ASSERT_TRUE(plan.ok()) << plan.status();
      text += plan->ToString();
    }
    EXPECT_EQ(text, fence.Text()) << fence.where;
  }
}

}  // namespace
}  // namespace crosshatch::docs
