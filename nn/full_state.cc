// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/full_state.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/cross_mesh.h"
#include "crosshatch/dtensor/distribute_from.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

using Json = nlohmann::json;

constexpr int kFirst = 0;

absl::StatusOr<std::shared_ptr<Communicator>> AllRanks(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.Group("world", std::move(ranks),
                     world.context().compute_stream().name());
}

/// The first error of any rank, on all of them.
absl::Status AgreeOn(Communicator& comm, const absl::Status& own,
                     const std::string& label) {
  const Json blob = {static_cast<int>(own.code()), std::string(own.message())};
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      comm.Exchange(blob.dump(-1, ' ', false, Json::error_handler_t::replace),
                    label));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json said = Json::parse(all[rank]);
    const auto code = said[0].get<absl::StatusCode>();
    if (code == absl::StatusCode::kOk) continue;
    return absl::Status(
        code, static_cast<int>(rank) == comm.rank()
                  ? said[1].get<std::string>()
                  : absl::StrCat("on rank ", comm.world_ranks()[rank], ": ",
                                 said[1].get<std::string>()));
  }
  return absl::OkStatus();
}

absl::Status CheckSameNames(Communicator& comm, const StateDict& state) {
  uint64_t key = state.size();
  for (const auto& [name, value] : state.entries()) {
    key = RandomKeyOf(key, name);
  }
  CH_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      comm.Exchange(absl::StrCat(key), "full state: names"));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the full state: ranks 0 and ", rank,
        " have entries of different names, or another number of them"));
  }
  return absl::OkStatus();
}

bool IsOn(const DeviceMesh& mesh, int rank) {
  const auto ranks = mesh.layout().ranks();
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// `tensor` on the only rank of `first`; undefined on the others.
Tensor OnFirstRank(const Tensor& tensor, const DeviceMesh& first) {
  const bool is_first = first.coordinate().has_value();
  if (!tensor.is_distributed()) return is_first ? tensor : Tensor();
  const DeviceMesh& mesh = MeshOf(tensor);
  // A tensor that other slices of a mesh hold too comes from the slice that the
  // first rank is on.
  if (!IsOn(mesh, kFirst)) return Tensor();
  const CrossMeshTensor moved = RedistributeAcross(
      CrossMeshTensor(tensor),
      {.from_mesh = mesh,
       .from = LayoutOf(tensor),
       .to_mesh = first,
       .to = Layout::Replicated(first.layout(), tensor.ndim()),
       .sizes = tensor.sizes(),
       .dtype = tensor.dtype()});
  return moved.present() ? LocalTensor(moved.tensor()) : Tensor();
}

// What a rank without the values must know of an entry: its kind and value, or
// its dtype and sizes. Numbers go by their bits.
Json Describe(const StateValue& value) {
  const auto index = static_cast<int>(value.index());
  if (const auto* tensor = std::get_if<Tensor>(&value)) {
    return {index, static_cast<int>(tensor->dtype()),
            std::vector<int64_t>(tensor->sizes().begin(),
                                 tensor->sizes().end())};
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return {index, std::bit_cast<uint64_t>(*number)};
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return {index, std::vector<uint8_t>(text->begin(), text->end())};
  }
  return {index, std::get<int64_t>(value)};
}

StateValue ValueOf(const std::string& name, const Json& said) {
  switch (said[0].get<int>()) {
    case 0:
      return Deferred(said[2].get<std::vector<int64_t>>(),
                      said[1].get<DType>(),
                      absl::StrCat("\"", name, "\" of rank 0's state"));
    case 1:
      return said[1].get<int64_t>();
    case 2:
      return std::bit_cast<double>(said[1].get<uint64_t>());
    default: {
      const auto bytes = said[1].get<std::vector<uint8_t>>();
      return std::string(bytes.begin(), bytes.end());
    }
  }
}

/// Rank 0's state; on the others with tensors that have no memory.
absl::StatusOr<StateDict> FromFirst(Communicator& comm,
                                    const StateDict& saved) {
  Json own = Json::array();
  if (comm.rank() == kFirst) {
    for (const auto& [name, value] : saved.entries()) {
      own.push_back({std::vector<uint8_t>(name.begin(), name.end()),
                     Describe(value)});
    }
  }
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      comm.Exchange(own.dump(), "full state: entries"));
  if (comm.rank() == kFirst) return saved;
  StateDict state;
  for (const Json& entry : Json::parse(all[kFirst])) {
    const auto bytes = entry[0].get<std::vector<uint8_t>>();
    const std::string name(bytes.begin(), bytes.end());
    CH_RETURN_IF_ERROR(state.Add(name, ValueOf(name, entry[1])));
  }
  return state;
}

/// "f32[3, 2]", of the whole tensor.
std::string Shaped(const Tensor& tensor) {
  return absl::StrCat(Name(tensor.dtype()), ToString(tensor.sizes()));
}

absl::Status CheckFits(const std::string& name, const Tensor& to,
                       const Tensor& from, const RestoreFullOptions& options) {
  const auto refused = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", Shaped(to), ", and ", Shaped(from),
                     " was kept of it: ", why));
  };
  if (from.is_distributed()) return refused("whole tensors are due");
  if (from.sizes() != to.sizes()) return refused("the sizes differ");
  if (from.dtype() != to.dtype() && !options.convert_dtypes) {
    return refused("the dtypes differ (RestoreFullOptions::convert_dtypes)");
  }
  if (options.from == StateHolder::kFirstRank && to.is_distributed() &&
      !IsOn(MeshOf(to), kFirst)) {
    return refused("rank 0, which has it, is not on the mesh");
  }
  return absl::OkStatus();
}

/// Puts the values of `from`, which fit, into `to`.
absl::Status Fill(World& world, Communicator& comm, const Tensor& to,
                  const Tensor& from, const RestoreFullOptions& options) {
  Tensor part = from;
  if (to.is_distributed()) {
    const DeviceMesh& mesh = MeshOf(to);
    part = options.from == StateHolder::kFirstRank
               ? DistributeTensorFrom(kFirst, from, mesh, LayoutOf(to))
               : DistributeTensor(from, mesh, LayoutOf(to));
  } else if (options.from == StateHolder::kFirstRank) {
    part = world.rank() == kFirst ? Contiguous(from)
                                  : Empty(from.sizes(), from.dtype());
    CH_RETURN_IF_ERROR(Broadcast(comm, part.raw_data(), part.numel(),
                                 part.dtype(), kFirst,
                                 world.context().current_stream(),
                                 "full state"));
  }
  CopyInPlace(WritableLocalTensor(to, "RestoreFullState"),
              ToDType(LocalTensor(part), to.dtype()));
  return absl::OkStatus();
}

/// Replaces the small values of `state`, and compares the tensors, with those
/// of `saved`.
absl::Status TakeValues(const StateDict& saved,
                        const RestoreFullOptions& options, StateDict& state) {
  for (const auto& [name, value] : state.entries()) {
    StateValue& to = *state.Find(name);
    const StateValue& from = *saved.Find(name);
    if (to.index() != from.index()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\" was kept as another kind of value than it is"));
    }
    if (const auto* tensor = std::get_if<Tensor>(&to)) {
      CH_RETURN_IF_ERROR(
          CheckFits(name, *tensor, std::get<Tensor>(from), options));
    } else {
      to = from;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VisitFullState(World& world, const StateDict& state,
                            StateHolder holder, StateVisitor visit) {
  RankContext& context = world.context();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(const auto comm, AllRanks(world));
  CH_RETURN_IF_ERROR(CheckSameNames(*comm, state));
  CH_ASSIGN_OR_RETURN(const DeviceMesh first,
                      InitDeviceMesh(world, {{"first", 1}}, {kFirst}));
  const bool holds =
      holder == StateHolder::kEveryRank || world.rank() == kFirst;
  const NoGrad no_grad;
  absl::Status status;
  for (const auto& [name, value] : state.entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) {
      if (holds && status.ok()) status = visit(name, value);
      continue;
    }
    Tensor whole = holder == StateHolder::kEveryRank
                       ? FullTensor(*tensor)
                       : OnFirstRank(*tensor, first);
    CH_RETURN_IF_ERROR(context.status());
    if (!holds || !status.ok()) continue;
    // One that lay whole on this rank already is no tensor of the visitor's.
    if (whole.storage() == LocalTensor(*tensor).storage()) whole = Clone(whole);
    status = visit(name, whole);
  }
  return AgreeOn(*comm, status, "full state: end");
}

absl::Status RestoreFullState(World& world, Stateful& target,
                              const StateDict& saved,
                              const RestoreFullOptions& options) {
  RankContext& context = world.context();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(const auto comm, AllRanks(world));
  StateDict source;
  if (options.from == StateHolder::kFirstRank) {
    CH_ASSIGN_OR_RETURN(source, FromFirst(*comm, saved));
  } else {
    source = saved;
  }
  absl::StatusOr<StateDict> state = target.StateToFill(NamesOf(source));
  absl::Status status = state.status();
  if (status.ok()) status = TakeValues(source, options, *state);
  CH_RETURN_IF_ERROR(AgreeOn(*comm, status, "full state: begin"));
  const NoGrad no_grad;
  for (const auto& [name, value] : state->entries()) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (tensor == nullptr) continue;
    CH_RETURN_IF_ERROR(Fill(world, *comm, *tensor,
                            std::get<Tensor>(*source.Find(name)), options));
    CH_RETURN_IF_ERROR(context.status());
  }
  return AgreeOn(*comm, target.Restore(*state), "full state: end");
}

}  // namespace crosshatch::nn
