// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/materialize.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/mesh/mesh_collectives.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Describes the parameters of one mesh and their initializers. All ranks of the
// mesh must return equal text.
std::string Describe(absl::Span<Parameter* const> parameters,
                     const DeviceMesh& mesh,
                     const MaterializeOptions& options) {
  int count = 0;
  uint64_t hash = 0;
  for (const Parameter* parameter : parameters) {
    const Tensor& data = parameter->data();
    if (!data.is_distributed() || MeshOf(data) != mesh) continue;
    ++count;
    const Initializer& by = parameter->initializer();
    hash = RandomKeyOf(
        hash,
        absl::StrCat(parameter->name(), " ", ToString(data.sizes()), " ",
                     LayoutOf(data).ToStringByDim(), " ",
                     static_cast<int>(by.kind), " ", by.stddev, " ", by.mean,
                     " ", by.low, " ", by.high, " ", static_cast<int>(by.fan)));
  }
  return absl::StrCat("seed ", options.seed, " for ", count,
                      " parameters (hash ", absl::Hex(hash), ")");
}

// Compares the descriptions of all ranks, since each rank fills only its own
// elements and nothing else would reveal different models.
absl::Status CompareOnMesh(const DeviceMesh& mesh, const std::string& here) {
  CH_ASSIGN_OR_RETURN(const std::optional<RankDifference> differ,
                      FindRankDifference(mesh, here, "Materialize"));
  if (!differ.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Materialize: ranks make different models: ", differ->first, " on rank ",
      differ->first_rank, ", ", differ->other, " on rank ", differ->other_rank,
      "; every rank takes the same seed and builds the same modules in the "
      "same order"));
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
        CompareOnMesh(mesh, Describe(parameters, mesh, options)));
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
