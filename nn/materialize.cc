// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/materialize.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Describes the parameters of one mesh and their initializers, a line each. All
// ranks of the mesh must return equal lines.
std::vector<std::string> Describe(absl::Span<Parameter* const> parameters,
                                  const DeviceMesh& mesh) {
  std::vector<std::string> lines;
  for (const Parameter* parameter : parameters) {
    const Tensor& data = parameter->data();
    if (!data.is_distributed() || MeshOf(data) != mesh) continue;
    lines.push_back(absl::StrCat(parameter->name(), " ", ToString(data.sizes()),
                                 " ", LayoutOf(data).ToStringByDim(), " ",
                                 parameter->initializer().ToString()));
  }
  return lines;
}

// Returns the first line that differs between the texts, from each of them.
std::pair<std::string, std::string> FirstDifference(const std::string& first,
                                                    const std::string& other) {
  const std::vector<std::string> a = absl::StrSplit(first, '\n');
  const std::vector<std::string> b = absl::StrSplit(other, '\n');
  size_t i = 0;
  while (i + 1 < std::min(a.size(), b.size()) && a[i] == b[i]) ++i;
  return {a[i], b[i]};
}

// Compares the descriptions of all ranks, since each rank fills only its own
// elements and nothing else would reveal different models.
absl::Status CompareOnMesh(const DeviceMesh& mesh,
                           const std::vector<std::string>& lines,
                           uint64_t seed) {
  uint64_t hash = 0;
  for (const std::string& line : lines) hash = RandomKeyOf(hash, line);
  const std::string summary =
      absl::StrCat("seed ", seed, " for ", lines.size(), " parameters");
  CH_ASSIGN_OR_RETURN(
      std::optional<RankDifference> differ,
      FindRankDifference(mesh,
                         absl::StrCat(summary, " (hash ", absl::Hex(hash), ")"),
                         "Materialize"));
  if (!differ.has_value()) return absl::OkStatus();
  // All ranks know that some differ, so only then do they exchange the lines.
  CH_ASSIGN_OR_RETURN(
      differ, FindRankDifference(
                  mesh, absl::StrCat(summary, "\n", absl::StrJoin(lines, "\n")),
                  "Materialize"));
  const auto [first, other] = FirstDifference(differ->first, differ->other);
  return absl::InvalidArgumentError(absl::StrCat(
      "Materialize: ranks make different models or shard them differently: ",
      first, " on rank ", differ->first_rank, ", ", other, " on rank ",
      differ->other_rank,
      "; every rank takes the same seed, builds the same modules in the same "
      "order, and shards them with the same options"));
}

absl::Status CompareRanks(absl::Span<Parameter* const> parameters,
                          const MaterializeOptions& options) {
  std::vector<DeviceMesh> meshes;
  for (const Parameter* parameter : parameters) {
    if (!parameter->data().is_distributed()) continue;
    const DeviceMesh& mesh = MeshOf(parameter->data());
    if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
    meshes.push_back(mesh);
    CH_RETURN_IF_ERROR(
        CompareOnMesh(mesh, Describe(parameters, mesh), options.seed));
  }
  return absl::OkStatus();
}

// Checks that names are unique, because initial values and the optimizer's
// state are by name.
absl::Status CheckNamesDiffer(absl::Span<Parameter* const> parameters) {
  absl::flat_hash_map<std::string, const Parameter*> by_name;
  for (const Parameter* parameter : parameters) {
    const auto [found, inserted] =
        by_name.try_emplace(parameter->name(), parameter);
    if (inserted || found->second == parameter) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Materialize: two parameters are named ", parameter->name(),
        "; names are given from the root of the tree, so materialize the root, "
        "not a module that gets a parent afterwards"));
  }
  return absl::OkStatus();
}

}  // namespace

void LeaseParameters(absl::Span<Parameter* const> parameters) {
  RankContext& context = RankContext::Current();
  for (const Parameter* parameter : parameters) {
    if (parameter->has_memory()) continue;
    Storage& storage = *LocalTensor(parameter->data()).storage();
    Allocator& allocator =
        parameter->on_host() ? context.host_allocator() : context.allocator();
    storage.Attach(allocator.Allocate(storage.bytes(), MemoryClass::kParameter,
                                      context.current_stream()),
                   allocator.device());
    // FSDP named the elements of its own parameters.
    if (storage.owner() == Parameter::kNotMaterialized) {
      storage.set_parts({{0, parameter->name()}});
    }
  }
}

absl::Status Materialize(absl::Span<Parameter* const> parameters,
                         const MaterializeOptions& options) {
  std::vector<Parameter*> deferred;
  for (Parameter* parameter : parameters) {
    if (parameter->has_memory()) continue;
    CH_CHECK(!parameter->name().empty()) << "materialize: no name";
    const Tensor& data = parameter->data();
    if (data.is_distributed() && LayoutOf(data).is_partial()) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot fill parameter ", parameter->name(),
                       ", which holds partial sums: ", data.Describe()));
    }
    CH_RETURN_IF_ERROR(
        CheckInitializer(absl::StrCat("parameter ", parameter->name()), data,
                         parameter->initializer()));
    deferred.push_back(parameter);
  }
  if (!deferred.empty()) CH_RETURN_IF_ERROR(CheckNamesDiffer(parameters));
  CH_RETURN_IF_ERROR(CompareRanks(deferred, options));
  LeaseParameters(deferred);
  for (const Parameter* parameter : deferred) {
    FillInitial(parameter->data(), parameter->initializer(), options.seed,
                parameter->name());
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
