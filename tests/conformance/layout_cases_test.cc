// SPDX-License-Identifier: Apache-2.0

/// \file
/// Compares layouts and plans with PyTorch's answers on layouts,
/// redistributions and FSDP over tensor-parallel shards, without starting
/// ranks.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/dtensor/layout/placement.h"
#include "crosshatch/dtensor/redistribution/interpreter.h"
#include "crosshatch/dtensor/redistribution/plan.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch {
namespace {

using Json = nlohmann::json;

std::vector<Json> ReadLines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

MeshLayout MeshOf(const Json& test) {
  std::vector<MeshAxis> axes;
  for (const Json& size : test["mesh"]) {
    axes.push_back({absl::StrCat("axis", axes.size()), size.get<int>()});
  }
  return MeshLayout::Create(std::move(axes)).value();
}

Layout LayoutOf(const Json& placements, const MeshLayout& mesh, int ndim) {
  std::vector<Placement> parsed;
  for (const Json& text : placements) {
    parsed.push_back(Placement::Parse(text.get<std::string>()).value());
  }
  return Layout::FromPlacements(mesh, ndim, parsed).value();
}

Shape ShapeOf(const Json& sizes) {
  Shape shape;
  for (const Json& size : sizes) shape.push_back(size.get<int64_t>());
  return shape;
}

/// Returns arange(numel) times 1 + k at index k along the partial axes.
std::vector<Values> SourceShards(const Layout& layout, const Shape& shape) {
  std::vector<int> partial;
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_partial()) partial.push_back(axis);
  }
  std::vector<Values> dense;
  for (int k = 0; k < layout.mesh().GroupSize(partial); ++k) {
    dense.emplace_back(NumElements(shape));
    std::iota(dense.back().begin(), dense.back().end(), 0.0);
    for (double& value : dense.back()) value *= 1 + k;
  }
  return CutAll(layout, shape, [&](const MeshCoordinate& at) -> const Values& {
    return dense[layout.mesh().GroupIndex(partial, at)];
  });
}

TEST(LayoutCasesTest, EveryAnswerIsEqual) {
  std::map<std::string, Json> answers;
  for (Json& answer : ReadLines("tests/conformance/layout.answers.jsonl")) {
    answers[answer["id"]] = std::move(answer["ranks"]);
  }
  std::map<std::string, int> count;
  for (const Json& test : ReadLines("tests/conformance/layout.cases.jsonl")) {
    SCOPED_TRACE(test.dump());
    const std::string kind = test["kind"];
    const MeshLayout mesh = MeshOf(test);
    const Shape shape = ShapeOf(test["shape"]);
    const int ndim = static_cast<int>(shape.size());

    Layout layout = Layout::Replicated(mesh, ndim);
    std::vector<Values> shards;
    if (kind == "layout") {
      layout = LayoutOf(test["src"], mesh, ndim);
      shards = SourceShards(layout, shape);
    } else if (kind == "redistribute") {
      const Layout source = LayoutOf(test["src"], mesh, ndim);
      layout = LayoutOf(test["dst"], mesh, ndim);
      const RedistributePlan plan =
          PlanRedistribute(source, layout, shape, sizeof(float)).value();
      shards = RunPlan(plan, shape, sizeof(float), SourceShards(source, shape));
    } else {
      ASSERT_EQ(kind, "fsdp_tp");
      std::vector<Json> placements(mesh.ndim(), "R");
      placements.back() = test["tp"];
      // FSDP splits tensor-parallel shards, so its axis comes last.
      layout = LayoutOf(placements, mesh, ndim).WithShard(/*axis=*/0, 0);
      shards = SourceShards(layout, shape);
    }

    const Json& ranks = answers.at(test["id"]);
    ASSERT_EQ(static_cast<int>(ranks.size()), mesh.size());
    for (int rank = 0; rank < mesh.size(); ++rank) {
      SCOPED_TRACE(rank);
      const Json& answer = ranks[rank];
      const Box box = layout.LocalBox(shape, mesh.CoordinateAt(rank));
      EXPECT_EQ(box.sizes, ShapeOf(answer["shape"]));
      EXPECT_EQ(shards[rank], answer["values"].get<Values>());
      if (answer.contains("offset") && !box.empty()) {
        EXPECT_EQ(box.offsets, ShapeOf(answer["offset"]));
      }
      if (answer.contains("placements")) {
        std::vector<std::string> placements;
        for (const Placement& placement : layout.ToPlacements()) {
          placements.push_back(placement.ToString());
        }
        EXPECT_EQ(placements,
                  answer["placements"].get<std::vector<std::string>>());
      }
    }
    ++count[kind];
  }
  for (const auto& [kind, n] : count) std::cout << n << " " << kind << "\n";
  EXPECT_EQ(count["layout"] + count["redistribute"] + count["fsdp_tp"], 297);
}

}  // namespace
}  // namespace crosshatch
