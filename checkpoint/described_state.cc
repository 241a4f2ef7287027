// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/described_state.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::checkpoint {
namespace {

absl::StatusOr<TensorSpec> SpecOf(const std::string& name, const Tensor& t) {
  if (!t.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is an undefined tensor"));
  }
  TensorSpec spec{.name = name, .dtype = t.dtype(), .sizes = t.sizes()};
  if (!t.is_distributed()) return spec;
  spec.layout = LayoutOf(t);
  if (spec.layout->is_partial()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name, "\" is partial (", spec.layout->ToString(),
        "): its ranks hold summands; redistribute it to shards or replicas "
        "first"));
  }
  return spec;
}

/// Returns the first lines that differ in two different texts.
std::pair<std::string, std::string> Difference(const std::string& a,
                                               const std::string& b) {
  const std::vector<std::string> x = absl::StrSplit(a, '\n');
  const std::vector<std::string> y = absl::StrSplit(b, '\n');
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] != y[i]) return {x[i], y[i]};
  }
  return {x.size() > y.size() ? x[y.size()] : "",
          y.size() > x.size() ? y[x.size()] : ""};
}

std::string OrNothing(const std::string& line) {
  return line.empty() ? "nothing more" : line;
}

/// Returns the meshes of `state`, each once, in the order of its tensors.
std::vector<MeshLayout> MeshesOf(const DescribedState& state) {
  std::vector<MeshLayout> meshes;
  for (const TensorSpec& tensor : state.tensors) {
    if (!tensor.layout.has_value()) continue;
    if (std::find(meshes.begin(), meshes.end(), tensor.layout->mesh()) ==
        meshes.end()) {
      meshes.push_back(tensor.layout->mesh());
    }
  }
  return meshes;
}

/// Returns DescribedState::ToString with meshes without their ranks.
std::string WithoutRanks(const DescribedState& state) {
  const std::vector<MeshLayout> meshes = MeshesOf(state);
  DescribedState shapes = state;
  std::string text;
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::vector<MeshAxis> axes;
    for (int axis = 0; axis < meshes[i].ndim(); ++axis) {
      axes.push_back({meshes[i].axis_name(axis), meshes[i].size(axis)});
    }
    const absl::StatusOr<MeshLayout> shape = MeshLayout::Create(axes);
    CH_CHECK_OK(shape.status());
    for (size_t t = 0; t < state.tensors.size(); ++t) {
      const std::optional<Layout>& layout = state.tensors[t].layout;
      if (!layout.has_value() || layout->mesh() != meshes[i]) continue;
      shapes.tensors[t].layout = layout->WithMesh(*shape);
      // Distinguishes meshes of one shape.
      absl::StrAppend(&text, t, ": mesh ", i, "\n");
    }
  }
  return shapes.ToString() + text;
}

std::string RanksOf(const std::vector<MeshLayout>& meshes) {
  return absl::StrJoin(meshes, ";", [](std::string* out, const MeshLayout& m) {
    absl::StrAppend(out, absl::StrJoin(m.ranks(), ","));
  });
}

/// Joins `mesh` and the other meshes of its shape along a new first axis.
/// \param by_rank the ranks of each rank's mesh in this place, in the format of
///     RanksOf.
absl::StatusOr<MeshLayout> Join(const MeshLayout& mesh,
                                const std::set<std::string>& by_rank) {
  std::vector<MeshAxis> axes = {{"(slices)", static_cast<int>(by_rank.size())}};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    axes.push_back({mesh.axis_name(axis), mesh.size(axis)});
  }
  std::vector<int> ranks;
  for (const std::string& slice : by_rank) {
    for (const absl::string_view number : absl::StrSplit(slice, ',')) {
      int rank = 0;
      CH_CHECK(absl::SimpleAtoi(number, &rank)) << slice;
      ranks.push_back(rank);
    }
  }
  return MeshLayout::Create(std::move(axes), std::move(ranks));
}

/// Returns `state` with each tensor on the mesh of all ranks that have one. The
/// states of the ranks differ only in the ranks of meshes.
/// \param by_rank RanksOf(MeshesOf(state)) of each rank.
absl::StatusOr<DescribedState> OnJoinedMeshes(
    const DescribedState& state, const std::vector<std::string>& by_rank) {
  DescribedState joined = state;
  const std::vector<MeshLayout> meshes = MeshesOf(state);
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::set<std::string> slices;
    for (const std::string& of_rank : by_rank) {
      const std::vector<std::string> lists = absl::StrSplit(of_rank, ';');
      CH_CHECK_EQ(lists.size(), meshes.size());
      slices.insert(lists[i]);
    }
    if (slices.size() == 1) continue;
    const absl::StatusOr<MeshLayout> mesh = Join(meshes[i], slices);
    for (size_t t = 0; t < state.tensors.size(); ++t) {
      const std::optional<Layout>& layout = state.tensors[t].layout;
      if (!layout.has_value() || layout->mesh() != meshes[i]) continue;
      if (!mesh.ok()) {
        return absl::FailedPreconditionError(
            absl::StrCat("\"", state.tensors[t].name,
                         "\" is on different meshes on different ranks, which "
                         "are not slices of one mesh: ",
                         absl::StrJoin(slices, " and "), ": ",
                         std::string(mesh.status().message())));
      }
      std::vector<DimSharding> dims(layout->dims().begin(),
                                    layout->dims().end());
      for (DimSharding& dim : dims) {
        for (int& axis : dim.axes) ++axis;
      }
      joined.tensors[t].layout = Layout(*mesh, std::move(dims));
    }
  }
  return joined;
}

absl::StatusOr<std::string> Text(const absl::StatusOr<DescribedState>& state,
                                 bool with_values, bool with_ranks) {
  CH_RETURN_IF_ERROR(state.status());
  DescribedState compared = *state;
  if (!with_values) compared.values.clear();
  return with_ranks ? compared.ToString() : WithoutRanks(compared);
}

bool AreEqual(const std::vector<std::string>& texts) {
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text == texts[0]; });
}

absl::StatusOr<std::vector<std::string>> GatherHashes(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<std::string>& text) {
  absl::StatusOr<std::string> mine = text;
  if (text.ok()) mine = HashToHex(HashText(*text));
  return Gather(comm, label, mine);
}

}  // namespace

std::string DescribedState::ToString() const {
  std::string text;
  for (const TensorSpec& tensor : tensors) {
    absl::StrAppend(&text, absl::CHexEscape(tensor.name), ": ",
                    Name(tensor.dtype), crosshatch::ToString(tensor.sizes));
    if (tensor.layout.has_value()) {
      absl::StrAppend(&text, " ", tensor.layout->ToStringByDim(), " on ",
                      tensor.layout->mesh().ToString());
    }
    absl::StrAppend(&text, "\n");
  }
  for (const auto& [name, value] : values) {
    absl::StrAppend(&text, absl::CHexEscape(name), " = ", ValueText(value),
                    "\n");
  }
  return text;
}

absl::StatusOr<DescribedState> Describe(const nn::StateDict& state) {
  DescribedState described;
  for (const auto& [name, entry] : state.entries()) {
    if (const Tensor* tensor = std::get_if<Tensor>(&entry)) {
      CH_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(name, *tensor));
      described.tensors.push_back(std::move(spec));
      described.data.push_back(*tensor);
      continue;
    }
    std::visit(
        [&](const auto& value) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(value)>,
                                        Tensor>) {
            described.values[name] = value;
          }
        },
        entry);
  }
  return described;
}

absl::StatusOr<DescribedState> Agree(
    Communicator& comm, const std::string& label,
    const absl::StatusOr<DescribedState>& described, bool with_values) {
  CH_ASSIGN_OR_RETURN(
      std::vector<std::string> hashes,
      GatherHashes(comm, label, Text(described, with_values, true)));
  if (AreEqual(hashes)) return *described;
  // The comparison failed on all ranks, so all of them exchange again.
  const absl::StatusOr<std::string> text = Text(described, with_values, false);
  CH_ASSIGN_OR_RETURN(
      hashes, GatherHashes(comm, absl::StrCat(label, ", without ranks"), text));
  if (AreEqual(hashes)) {
    CH_ASSIGN_OR_RETURN(const std::vector<std::string> ranks,
                        Gather(comm, absl::StrCat(label, ", ranks"),
                               RanksOf(MeshesOf(*described))));
    return OnJoinedMeshes(*described, ranks);
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      Gather(comm, absl::StrCat(label, ", in full"), text));
  const auto other =
      std::find_if(texts.begin(), texts.end(),
                   [&](const std::string& their) { return their != texts[0]; });
  const auto index = static_cast<size_t>(other - texts.begin());
  const auto [first, second] = Difference(texts[0], texts[index]);
  return absl::FailedPreconditionError(
      absl::StrCat(label, ": ranks have different states: ", OrNothing(first),
                   " on rank ", comm.world_ranks()[0], ", ", OrNothing(second),
                   " on rank ", comm.world_ranks()[index]));
}

std::string ListNames(absl::Span<const std::string> names) {
  constexpr size_t kMost = 3;
  const size_t shown = std::min(names.size(), kMost);
  std::string text = absl::StrJoin(names.subspan(0, shown), ", ");
  if (names.size() > shown) {
    absl::StrAppend(&text, " and ", names.size() - shown, " more");
  }
  return text;
}

}  // namespace crosshatch::checkpoint
