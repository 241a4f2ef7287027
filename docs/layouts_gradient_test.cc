// SPDX-License-Identifier: Apache-2.0

/// \file
/// Runs the lines of the blocks named `gradient` of docs/layouts.md, such as
///
///     [S(0)] -> [R]  gradient [P(sum)] -> [S(0)]  reduce_scatter(...)
///
/// redistributes a tensor, runs backward with a gradient that comes in the
/// layout named, and compares which redistributions happened, and the result.

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/docs/page_testutil.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::docs {
namespace {

// Records redistributions as "from -> to".
class RedistributionSink final : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    if (event.kind == EventKind::kRedistribute) lines.push_back(*event.subject);
  }
  std::vector<std::string> lines;
};

struct Case {
  std::string from;
  std::string to;
  /// The gradient's layout as it arrives, and that of the input's gradient.
  std::string gradient;
  std::string result;
  /// The redistribution between the two, or "nothing".
  std::string step;
};

std::pair<std::string, std::string> Ends(const std::string& text) {
  const std::vector<std::string> sides = absl::StrSplit(text, " -> ");
  return {sides.at(0), sides.at(1)};
}

Case ParseCase(const std::string& line) {
  const std::vector<std::string> fields = Fields(line);
  Case result;
  std::tie(result.from, result.to) = Ends(fields.at(0));
  std::tie(result.gradient, result.result) =
      Ends(std::string(absl::StripPrefix(fields.at(1), "gradient ")));
  result.step = fields.at(2);
  return result;
}

// Returns this rank's part of a tensor of which only the sum matters. If it is
// partial, the first rank holds `value` everywhere and the others zeros.
Tensor Made(const DeviceMesh& mesh, const Layout& layout, const Shape& shape,
            double value) {
  const Shape local = layout.LocalShape(shape, *mesh.coordinate());
  const bool zero = layout.is_partial() && mesh.world().rank() != 0;
  return MakeDTensor(Full(local, zero ? 0 : value), mesh, layout, shape);
}

// Runs the case on one rank, whose sink is `sink`.
absl::Status RunCase(World& world, RedistributionSink& sink, const Case& c,
                     const MeshLayout& mesh_layout, const Shape& shape) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, mesh_layout));
  const int ndim = static_cast<int>(shape.size());
  const Layout from = ParseLayout(mesh_layout, ndim, c.from);
  const Layout to = ParseLayout(mesh_layout, ndim, c.to);
  const Layout gradient = ParseLayout(mesh_layout, ndim, c.gradient);
  const Layout result = ParseLayout(mesh_layout, ndim, c.result);

  Tensor leaf = Made(mesh, from, shape, 2);
  leaf.set_requires_grad(true);
  const Tensor moved = Redistribute(leaf, to);
  sink.lines.clear();
  CH_ASSIGN_OR_RETURN(
      const TensorList gradients,
      Gradients(moved, {leaf}, {.gradient = Made(mesh, gradient, shape, 3)}));
  const std::vector<std::string> expected =
      c.step == "nothing" ? std::vector<std::string>{}
                          : std::vector<std::string>{
                                absl::StrCat(c.gradient, " -> ", c.result)};
  if (sink.lines != expected) {
    return absl::InternalError(
        absl::StrCat("redistributed ", absl::StrJoin(sink.lines, "; "),
                     " instead of ", absl::StrJoin(expected, "; ")));
  }
  if (LayoutOf(gradients[0]) != result) {
    return absl::InternalError(absl::StrCat("the gradient lies as ",
                                            LayoutOf(gradients[0]).ToString()));
  }
  for (float value : FullTensor(gradients[0]).ToVector<float>()) {
    if (value != 3) {
      return absl::InternalError(absl::StrCat("a gradient of ", value));
    }
  }
  CH_ASSIGN_OR_RETURN(const RedistributePlan plan,
                      PlanRedistribute(gradient, result, shape, sizeof(float)));
  const std::string step =
      plan.steps.empty() ? "nothing" : plan.steps[0].ToString();
  if (plan.steps.size() > 1 || step != c.step) {
    return absl::InternalError(absl::StrCat("the plan is ", plan.ToString()));
  }
  return absl::OkStatus();
}

TEST(LayoutsGradientTest, GradientsTakeTheStepsOfThePage) {
  const std::vector<Fence> fences = FencesOf("docs/layouts.md", "gradient");
  ASSERT_EQ(fences.size(), 1u);
  const std::vector<std::string> head = Fields(fences[0].lines[0]);
  const MeshLayout mesh = ParseMesh(head.at(0));
  ASSERT_EQ(head.at(1).substr(0, 3), "f32");
  const Shape shape = ParseShape(head[1].substr(3));
  ASSERT_GE(fences[0].lines.size(), 8u);
  for (size_t i = 1; i < fences[0].lines.size(); ++i) {
    const Case c = ParseCase(fences[0].lines[i]);
    std::vector<RedistributionSink> sinks(static_cast<size_t>(mesh.size()));
    JobOptions options;
    for (RedistributionSink& sink : sinks) options.sinks.push_back(&sink);
    const absl::Status status = StatusOfRanks(
        mesh.size(),
        [&](World& world) {
          return RunCase(world, sinks[static_cast<size_t>(world.rank())], c,
                         mesh, shape);
        },
        options);
    EXPECT_TRUE(status.ok()) << fences[0].lines[i] << ": " << status;
  }
}

}  // namespace
}  // namespace crosshatch::docs
