// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/described_state.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/content_hash.h"
#include "crosshatch/checkpoint/on_ranks.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout.h"
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

constexpr size_t kHexDigits = 16;

struct TextOfValue {
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const {
    return absl::StrFormat("%.17g", value);
  }
  // On one line.
  std::string operator()(const std::string& value) const {
    return absl::StrCat("\"", absl::CHexEscape(value), "\"");
  }
};

/// The first line that differs, of two texts that do.
std::pair<std::string, std::string> Difference(const std::string& a,
                                               const std::string& b) {
  const std::vector<std::string> x = absl::StrSplit(a, '\n');
  const std::vector<std::string> y = absl::StrSplit(b, '\n');
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] != y[i]) return {x[i], y[i]};
  }
  // One ends where the other goes on.
  return {x.size() > y.size() ? x[y.size()] : "",
          y.size() > x.size() ? y[x.size()] : ""};
}

std::string OrNothing(const std::string& line) {
  return line.empty() ? "nothing more" : line;
}

/// `layout`, of a slice of a mesh, on all of the mesh: the axes that the slice
/// lacks replicate. None for a mesh that is no slice of its root.
std::optional<Layout> OnRoot(const Layout& layout) {
  const MeshLayout& mesh = layout.mesh();
  const MeshLayout root = mesh.root();
  if (mesh == root) return std::nullopt;
  const absl::StatusOr<MeshLayout> slice =
      root.Slice(mesh.axis_names(), mesh.ranks()[0]);
  // Axes that were joined or split have other names or sizes.
  if (!slice.ok() || *slice != mesh) return std::nullopt;
  std::vector<DimSharding> dims(layout.dims().begin(), layout.dims().end());
  for (DimSharding& dim : dims) {
    for (int& axis : dim.axes) axis = *root.AxisIndex(mesh.axis_name(axis));
  }
  return Layout(root, std::move(dims));
}

/// Whether ranks that gave these, each of two hashes, describe alike by the
/// first or the second.
bool IsOneText(const std::vector<std::string>& hashes, size_t which) {
  return std::all_of(hashes.begin(), hashes.end(),
                     [&](const std::string& both) {
                       return both.substr(which * kHexDigits, kHexDigits) ==
                              hashes[0].substr(which * kHexDigits, kHexDigits);
                     });
}

}  // namespace

DescribedState DescribedState::OnWholeMeshes(int rank) const {
  DescribedState whole = *this;
  for (TensorSpec& tensor : whole.tensors) {
    if (!tensor.layout.has_value() || !tensor.layout->mesh().Contains(rank)) {
      continue;
    }
    std::optional<Layout> on_root = OnRoot(*tensor.layout);
    if (on_root.has_value()) tensor.layout = *std::move(on_root);
  }
  return whole;
}

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
    absl::StrAppend(&text, absl::CHexEscape(name), " = ",
                    std::visit(TextOfValue(), value), "\n");
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
    Communicator& comm, const std::string& label, int rank,
    const absl::StatusOr<DescribedState>& described, bool with_values) {
  const auto text_of = [&](DescribedState state) {
    if (!with_values) state.values.clear();
    return state.ToString();
  };
  absl::StatusOr<std::string> mine = std::string();
  absl::StatusOr<std::string> text = std::string();
  if (described.ok()) {
    text = text_of(described->OnWholeMeshes(rank));
    mine = absl::StrCat(HashToHex(HashText(text_of(*described))),
                        HashToHex(HashText(*text)));
  } else {
    mine = text = described.status();
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> hashes,
                      Gather(comm, label, mine));
  if (IsOneText(hashes, 0)) return *described;
  if (IsOneText(hashes, 1)) return described->OnWholeMeshes(rank);
  // All ranks know that, so all of them meet again.
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

}  // namespace crosshatch::checkpoint
