// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/dispatch/replica_check.h"

#include <algorithm>
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
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tensor/element_hash.h"
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

// A tensor part that other ranks may replicate.
struct Part {
  std::string what;
  Layout layout;
  Shape sizes;           // Global.
  bool is_data = false;  // What a program reads, or what follows from it.
  std::string local;     // The local shape, and a hash of the elements.
};

// The integers compared so far, and those that wait for comparison. The hashes
// depend only on values that the ranks of a mesh share, so all ranks decide
// alike which are new.
struct Compared final : RankContext::Extension {
  absl::flat_hash_set<size_t> seen;
  std::vector<std::pair<DeviceMesh, std::vector<Part>>> waiting;
};

Compared& ComparedHere() { return RankContext::Current().Get<Compared>(); }

Part PartOf(std::string what, const Tensor& local, const Layout& layout,
            ShapeView sizes, bool is_data) {
  return {.what = std::move(what),
          .layout = layout,
          .sizes = Shape(sizes.begin(), sizes.end()),
          .is_data = is_data,
          .local = absl::StrCat(ToString(local.sizes()), " ",
                                HashOfElements(local))};
}

bool IsFirst(absl::string_view what, const std::string* module,
             const Layout& layout) {
  absl::string_view in;
  if (module != nullptr) in = *module;
  return ComparedHere().seen.insert(absl::HashOf(what, in, layout)).second;
}

bool IsFirstOn(const DeviceMesh& mesh) {
  return ComparedHere().seen.insert(absl::HashOf(mesh.layout())).second;
}

// Returns OK if `locals`, Part::local of all ranks of `mesh`, are equal for
// ranks that replicate each other by the layout of `part`.
absl::Status CompareLocals(const Part& part,
                           const std::vector<absl::string_view>& locals,
                           const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  for (int i = 0; i < mesh.size(); ++i) {
    // Of the ranks that replicate each other, the one with coordinate 0.
    MeshCoordinate at = mesh.layout().CoordinateAt(i);
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if (part.layout.state_of_axis(axis).is_replicate()) at[axis] = 0;
    }
    const int first = mesh.layout().GroupIndex(axes, at);
    const absl::string_view ours = locals[static_cast<size_t>(first)];
    const absl::string_view theirs = locals[static_cast<size_t>(i)];
    if (ours == theirs) continue;
    const int ranks[] = {mesh.layout().ranks()[first],
                         mesh.layout().ranks()[i]};
    const auto shape = [](absl::string_view local) {
      return local.substr(0, local.find(']') + 1);
    };
    if (shape(ours) != shape(theirs)) {
      return absl::FailedPreconditionError(absl::StrCat(
          part.what, ": rank ", ranks[0], " has shape ", shape(ours), ", rank ",
          ranks[1], " ", shape(theirs), ", but they replicate each other by ",
          part.layout.ToString(), " on ", mesh.ToString(),
          ": ranks that split no batch between them read the same rows; call "
          "RowsOf with the axes that split the batch, not the whole mesh"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        part.what, ": ranks ", ranks[0], " and ", ranks[1],
        " replicate a part of ", ToString(part.sizes), " by ",
        part.layout.ToString(), " on ", mesh.ToString(),
        ", but hold different values",
        part.is_data ? ": ranks that split no batch between them are given the "
                       "same ids, targets and masks, the same seeds and the "
                       "same mode (set_training)"
                     : ""));
  }
  return absl::OkStatus();
}

// Returns OK if ranks hold the same bits of all `parts`. Uses one exchange.
absl::Status CompareParts(const std::vector<Part>& parts,
                          const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(Communicator * group, MeshCommunicator(mesh));
  std::string text;
  for (const Part& part : parts) absl::StrAppend(&text, part.local, ";");
  std::string label = absl::StrCat("replicas: ", parts[0].what);
  if (parts.size() > 1) {
    absl::StrAppend(&label, " and ", parts.size() - 1, " more");
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      group->Exchange(text, label));
  std::vector<std::vector<absl::string_view>> by_rank;
  for (const std::string& of_rank : texts) {
    by_rank.push_back(absl::StrSplit(of_rank, ';'));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<absl::string_view> locals;
    for (const auto& of_rank : by_rank) locals.push_back(of_rank[i]);
    CH_RETURN_IF_ERROR(CompareLocals(parts[i], locals, mesh));
  }
  return absl::OkStatus();
}

// Compares the part with those of other ranks, or queues it for the end of the
// forward. The first part on a mesh does not wait: if ranks have different
// numbers of rows, the next collective would fail, in words of its own.
void TakeUp(const char* what, const Tensor& local, const DeviceMesh& mesh,
            const Layout& layout, ShapeView sizes, bool is_data) {
  const std::shared_ptr<const std::string> module = RunningModule();
  std::string where = what;
  if (module != nullptr) absl::StrAppend(&where, " in module ", *module);
  Part part = PartOf(std::move(where), local, layout, sizes, is_data);
  if (!ComparesReplicas() && module != nullptr && !IsFirstOn(mesh)) {
    auto& waiting = ComparedHere().waiting;
    auto of_mesh =
        std::find_if(waiting.begin(), waiting.end(),
                     [&](const auto& entry) { return entry.first == mesh; });
    if (of_mesh == waiting.end()) {
      of_mesh = waiting.insert(of_mesh, {mesh, {}});
    }
    of_mesh->second.push_back(std::move(part));
    return;
  }
  absl::Status status = CompareParts({std::move(part)}, mesh);
  if (!status.ok()) RankContext::Current().Poison(std::move(status));
}

}  // namespace

bool HasReplicas(const Layout& layout) {
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (layout.state_of_axis(axis).is_replicate() &&
        layout.mesh().size(axis) > 1) {
      return true;
    }
  }
  return false;
}

bool ComparesReplicas() {
  static const bool asked = AskedByEnvironment();
  return asked;
}

absl::Status CompareReplicas(const std::string& what, const Tensor& local,
                             const DeviceMesh& mesh, const Layout& layout,
                             ShapeView sizes) {
  return CompareParts(
      {PartOf(what, local, layout, sizes, !IsFloatingPoint(local.dtype()))},
      mesh);
}

void CompareReplicasOfInput(const char* what, const Tensor& local,
                            const DeviceMesh& mesh, const Layout& layout,
                            ShapeView sizes) {
  const bool always = ComparesReplicas();
  if (!always &&
      (IsFloatingPoint(local.dtype()) || !HasReplicas(layout) ||
       !mesh.coordinate().has_value() ||
       ErrorContext::Innermost(ErrorContext::Kind::kGradient) != nullptr)) {
    return;
  }
  const std::shared_ptr<const std::string> module = RunningModule();
  if (!always && !IsFirst(what, module.get(), layout)) return;
  TakeUp(what, local, mesh, layout, sizes, !IsFloatingPoint(local.dtype()));
}

void CompareReplicasOnce(const char* what, const Tensor& local,
                         const DeviceMesh& mesh, const Layout& layout,
                         ShapeView sizes) {
  if (!HasReplicas(layout) || !mesh.coordinate().has_value()) return;
  TakeUp(what, local, mesh, layout, sizes, /*is_data=*/true);
}

void CompareTakenInputs() {
  const auto waiting = std::exchange(ComparedHere().waiting, {});
  for (const auto& [mesh, parts] : waiting) {
    absl::Status status = CompareParts(parts, mesh);
    if (!status.ok()) RankContext::Current().Poison(std::move(status));
  }
}

}  // namespace crosshatch
