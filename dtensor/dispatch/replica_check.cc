// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/replica_check.h"

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/place.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tensor/host_access.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {
namespace {

bool AskedByEnvironment() {
  const char* const text = std::getenv("CROSSHATCH_DEBUG");
  if (text == nullptr || *text == '\0') return false;
  CH_CHECK(absl::string_view(text) == "replicas")
      << "CROSSHATCH_DEBUG=" << text
      << " in the environment: it takes \"replicas\"";
  return true;
}

// FNV-1a: the same in every process.
std::string HashOfElements(const Tensor& local) {
  if (local.device().is_meta()) return "";
  NoGrad no_grad;
  const Tensor t = local.is_contiguous() ? local : Clone(local);
  const HostView view(t);
  const auto* bytes = static_cast<const unsigned char*>(view.data());
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < t.numel() * SizeOf(t.dtype()); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return absl::StrCat(absl::Hex(hash));
}

}  // namespace

bool ComparesReplicas() {
  static const bool asked = AskedByEnvironment();
  return asked;
}

absl::Status CompareReplicas(const std::string& what, const Tensor& local,
                             const DeviceMesh& mesh, const Layout& layout,
                             ShapeView sizes) {
  std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  CH_ASSIGN_OR_RETURN(
      Communicator * group,
      mesh.communicator(axes, RankContext::Current().current_stream().name()));
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> hashes,
      group->Exchange(HashOfElements(local), absl::StrCat("replicas: ", what)));
  for (int i = 0; i < mesh.size(); ++i) {
    // Among ranks that replicate each other, the one with coordinate 0.
    MeshCoordinate at = mesh.layout().CoordinateAt(i);
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if (layout.state_of_axis(axis).is_replicate()) at[axis] = 0;
    }
    const int first = mesh.layout().GroupIndex(axes, at);
    if (hashes[i] == hashes[first]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": ranks ", mesh.layout().ranks()[first], " and ",
                     mesh.layout().ranks()[i], " replicate a part of ",
                     ToString(sizes), " by ", layout.ToString(), " on ",
                     mesh.ToString(), ", but hold different values"));
  }
  return absl::OkStatus();
}

void CompareReplicasIfAsked(const char* what, const Tensor& local,
                            const DeviceMesh& mesh, const Layout& layout,
                            ShapeView sizes) {
  if (!ComparesReplicas()) return;
  RankContext& context = RankContext::Current();
  if (context.poisoned()) return;
  std::string where = what;
  if (const auto module = RunningModule()) {
    absl::StrAppend(&where, " in module ", *module);
  }
  absl::Status status = CompareReplicas(where, local, mesh, layout, sizes);
  if (!status.ok()) context.Poison(std::move(status));
}

}  // namespace crosshatch
