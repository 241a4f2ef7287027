// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/replica_check.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
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

// Which integers were compared, by hashes of what the ranks of a mesh do alike:
// all of them find the same new.
struct Compared final : RankContext::Extension {
  absl::flat_hash_set<size_t> seen;
};
constexpr char kComparedKey = 0;

bool HasReplicas(const Layout& layout) {
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_replicate() &&
        layout.mesh().size(axis) > 1) {
      return true;
    }
  }
  return false;
}

bool IsFirst(absl::string_view what, const std::string* module,
             const Layout& layout) {
  std::unique_ptr<RankContext::Extension>& slot =
      RankContext::Current().extension(&kComparedKey);
  if (slot == nullptr) slot = std::make_unique<Compared>();
  absl::string_view in;
  if (module != nullptr) in = *module;
  return static_cast<Compared&>(*slot)
      .seen.insert(absl::HashOf(what, in, layout))
      .second;
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
                     mesh.ToString(), ", but hold different values",
                     IsFloatingPoint(local.dtype())
                         ? ""
                         : ": ranks that split no batch between them are given "
                           "the same ids, targets and masks"));
  }
  return absl::OkStatus();
}

void CompareReplicasOfInput(const char* what, const Tensor& local,
                            const DeviceMesh& mesh, const Layout& layout,
                            ShapeView sizes) {
  const bool always = ComparesReplicas();
  if (!always && (IsFloatingPoint(local.dtype()) || !HasReplicas(layout) ||
                  !mesh.coordinate().has_value())) {
    return;
  }
  const std::shared_ptr<const std::string> module = RunningModule();
  if (!always && !IsFirst(what, module.get(), layout)) return;
  std::string where = what;
  if (module != nullptr) absl::StrAppend(&where, " in module ", *module);
  absl::Status status = CompareReplicas(where, local, mesh, layout, sizes);
  if (!status.ok()) RankContext::Current().Poison(std::move(status));
}

}  // namespace crosshatch
