// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/conformance/case_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"
#include "nlohmann/json.hpp"

namespace crosshatch::conformance {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  Json id;
  std::string kind;
  std::vector<MeshAxis> axes;
  Shape shape;
  std::vector<Placement> from;
  std::vector<Placement> to;

  int ranks() const {
    int product = 1;
    for (const MeshAxis& axis : axes) product *= axis.size;
    return product;
  }
};

absl::StatusOr<std::vector<Placement>> PlacementsOf(const Json& list) {
  std::vector<Placement> placements;
  for (const Json& text : list) {
    CH_ASSIGN_OR_RETURN(Placement placement,
                        Placement::Parse(text.get<std::string>()));
    placements.push_back(placement);
  }
  return placements;
}

absl::StatusOr<Case> ParseFields(const Json& json) {
  Case c;
  c.id = json.at("id");
  c.kind = json.at("kind").get<std::string>();
  int64_t ranks = 1;
  for (const Json& size : json.at("mesh")) {
    c.axes.push_back({absl::StrCat("axis", c.axes.size()), size.get<int>()});
    ranks *= c.axes.back().size;
    if (c.axes.back().size < 1 || ranks > 64) {
      return absl::InvalidArgumentError("the mesh has no size from 1 to 64");
    }
  }
  CH_RETURN_IF_ERROR(MeshLayout::Create(c.axes).status());
  for (const Json& size : json.at("shape")) {
    c.shape.push_back(size.get<int64_t>());
    if (c.shape.back() < 0) {
      return absl::InvalidArgumentError("a size is negative");
    }
  }
  if (c.kind == "layout" || c.kind == "redistribute") {
    CH_ASSIGN_OR_RETURN(c.from, PlacementsOf(json.at("src")));
    if (c.kind == "redistribute") {
      CH_ASSIGN_OR_RETURN(c.to, PlacementsOf(json.at("dst")));
    }
    return c;
  }
  if (c.kind == "fsdp_tp") {
    CH_ASSIGN_OR_RETURN(c.from, PlacementsOf(Json::array({json.at("tp")})));
    if (c.axes.size() < 2) {
      return absl::InvalidArgumentError("fsdp_tp takes a mesh of two axes");
    }
    if (c.shape.empty()) {
      return absl::InvalidArgumentError("fsdp_tp takes a tensor with dims");
    }
    return c;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown kind ", c.kind));
}

absl::StatusOr<Case> ParseCase(const Json& json) {
  try {
    return ParseFields(json);
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(e.what());
  }
}

Json ShapeJson(ShapeView shape) {
  Json json = Json::array();
  for (int64_t size : shape) json.push_back(size);
  return json;
}

Json PartOf(const Tensor& t) {
  const Tensor local = LocalTensor(t);
  return {{"shape", ShapeJson(local.sizes())},
          {"values", local.ToVector<float>()}};
}

// Returns the plain shard times 1 + this rank's index over the axes of
// Partials.
Tensor Source(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout) {
  Layout plain = layout;
  int index = 0;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!layout.state_of_axis(axis).is_partial()) continue;
    index = index * mesh.size(axis) + *mesh.index(axis);
    plain = plain.WithReplicate(axis);
  }
  const Tensor shard = LocalTensor(DistributeTensor(dense, mesh, plain));
  return MakeDTensor(Mul(shard, 1 + index), mesh, layout, dense.sizes());
}

absl::StatusOr<Json> RunFsdpOverTp(const Case& c, const Tensor& dense,
                                   const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice(c.axes.front().name));
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice(c.axes.back().name));
  const int ndim = dense.ndim();
  CH_ASSIGN_OR_RETURN(const Layout inner,
                      Layout::FromPlacements(tp.layout(), ndim, c.from));
  const Tensor parameter = DistributeTensor(dense, tp, inner);
  CH_ASSIGN_OR_RETURN(
      const fsdp::ShardedForm form,
      DTensorExtensions::Create()->Chunk(parameter, fsdp, /*dim=*/0));

  // FSDP starts from the shard of the last axis.
  const Layout before = form.layout.WithReplicate(0);
  const Tensor sharded = Redistribute(
      MakeDTensor(LocalTensor(parameter), form.mesh, before, dense.sizes()),
      form.layout);
  Json part = PartOf(sharded);
  // Over the whole mesh; the tensor is replicated along axes that it is not on.
  const std::vector<Placement> placements = form.layout.ToPlacements();
  const auto own = form.mesh.axis_names();
  part["placements"] = Json::array();
  for (const std::string& axis : mesh.axis_names()) {
    const auto at = std::find(own.begin(), own.end(), axis);
    part["placements"].push_back(
        at == own.end()
            ? Replicate().ToString()
            : placements[static_cast<size_t>(at - own.begin())].ToString());
  }
  return part;
}

// Returns this rank's part of the answer, or null outside of the mesh. All
// ranks refuse a case alike, before any communication.
absl::StatusOr<Json> RunCase(const Case& c, World& world) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, c.axes));
  if (!mesh.coordinate().has_value()) return Json();
  const Tensor dense = View(Arange(NumElements(c.shape)), c.shape);
  if (c.kind == "fsdp_tp") return RunFsdpOverTp(c, dense, mesh);

  CH_ASSIGN_OR_RETURN(
      const Layout from,
      Layout::FromPlacements(mesh.layout(), dense.ndim(), c.from));
  if (c.kind == "layout") {
    const Tensor t = DistributeTensor(dense, mesh, from);
    Json part = PartOf(t);
    part["offset"] = ShapeJson(LocalBoxOf(t).offsets);
    return part;
  }
  CH_ASSIGN_OR_RETURN(const Layout to, Layout::FromPlacements(
                                           mesh.layout(), dense.ndim(), c.to));
  return PartOf(Redistribute(Source(dense, mesh, from), to));
}

std::string Refusal(const Json& id, const absl::Status& status) {
  return Json({{"id", id}, {"error", std::string(status.message())}}).dump();
}

}  // namespace

int RanksOf(const std::vector<std::string>& cases) {
  int ranks = 1;
  for (const std::string& text : cases) {
    const absl::StatusOr<Case> c = ParseCase(Json::parse(text, nullptr, false));
    if (c.ok()) ranks = std::max(ranks, c->ranks());
  }
  return ranks;
}

absl::StatusOr<std::vector<std::string>> RunCases(
    World& world, const std::vector<std::string>& cases) {
  std::vector<std::string> answers(cases.size());
  // By case: this rank's part of the answer, or null outside of the mesh.
  Json mine = Json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json json = Json::parse(cases[i], nullptr, false);
    absl::StatusOr<Case> c = ParseCase(json);
    if (c.ok() && c->ranks() > world.size()) {
      c = absl::InvalidArgumentError(absl::StrCat("the mesh takes ", c->ranks(),
                                                  " ranks; this job has ",
                                                  world.size()));
    }
    if (!c.ok()) {
      const bool named = json.is_object() && json.contains("id");
      answers[i] = Refusal(named ? json["id"] : Json(), c.status());
      mine.push_back(Json());
      continue;
    }
    const absl::StatusOr<Json> part = RunCase(*c, world);
    CH_RETURN_IF_ERROR(world.context().Synchronize());
    mine.push_back(part.ok() ? *part : Json(part.status().message()));
  }

  CH_ASSIGN_OR_RETURN(const auto all,
                      world.Group("cases", world.AllRanks(),
                                  world.context().compute_stream().name()));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                      all->Exchange(mine.dump(), "answers"));
  std::vector<Json> by_rank;
  for (const std::string& text : gathered) by_rank.push_back(Json::parse(text));
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!answers[i].empty()) continue;
    const Json id = Json::parse(cases[i])["id"];
    Json list = Json::array();
    for (const Json& of_rank : by_rank) {
      const Json& part = of_rank[i];
      if (part.is_string()) {
        answers[i] =
            Refusal(id, absl::InvalidArgumentError(part.get<std::string>()));
        break;
      }
      if (!part.is_null()) list.push_back(part);
    }
    if (!answers[i].empty()) continue;
    answers[i] = Json({{"id", id}, {"ranks", list}}).dump();
  }
  return answers;
}

}  // namespace crosshatch::conformance
