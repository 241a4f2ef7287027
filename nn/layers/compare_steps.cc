// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/compare_steps.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/rank_difference.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

absl::Status CompareOnMesh(const DeviceMesh& mesh, const std::string& here) {
  CH_ASSIGN_OR_RETURN(const std::optional<RankDifference> differ,
                      FindRankDifference(mesh, here, "SetDropoutStep"));
  if (!differ.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "dropout draws differently on ranks ", differ->first_rank, " and ",
      differ->other_rank, ": SetDropoutStep was told ", differ->first, " and ",
      differ->other, "; it takes the same seed and step on every rank"));
}

}  // namespace

bool CompareSteps(Module& root, uint64_t seed, uint64_t step) {
  RankContext& context = RankContext::Current();
  std::vector<DeviceMesh> meshes;
  for (const Parameter* parameter : root.Parameters()) {
    if (!parameter->data().is_distributed()) continue;
    const DeviceMesh& mesh = MeshOf(parameter->data());
    if (mesh.size() == 1 || !mesh.coordinate().has_value()) continue;
    if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
    meshes.push_back(mesh);
    const absl::Status status =
        CompareOnMesh(mesh, absl::StrCat("seed ", seed, ", step ", step));
    if (!status.ok()) context.Poison(status);
  }
  return !meshes.empty();
}

}  // namespace crosshatch::nn
