// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/compare_steps.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/mesh_communicator.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

absl::Status CompareOnMesh(const DeviceMesh& mesh, const std::string& here) {
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      communicator->Exchange(here, "SetDropoutStep"));
  const absl::Span<const int> ranks = mesh.layout().ranks();
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "dropout draws differently on ranks ", ranks[0], " and ", ranks[i],
        ": SetDropoutStep was told ", all[0], " and ", all[i],
        "; it takes the same seed and step on every rank"));
  }
  return absl::OkStatus();
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
