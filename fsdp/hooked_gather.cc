// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/hooked_gather.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::fsdp {
namespace {

using Inputs = std::vector<GatherHooks::Input>;

/// The tensors of a parameter: of the whole, and of each rank's piece.
struct Planned {
  Inputs whole;
  std::vector<Inputs> pieces;
};

absl::Status Error(const PlannedParameter& parameter, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "FullyShard: the gather hooks of parameter ", parameter.name,
      " of local shape ", ToString(parameter.full_shape), " ", what));
}

std::string Describe(const GatherHooks::Input& input) {
  return absl::StrCat(Name(input.dtype), ToString(input.shape));
}

absl::StatusOr<Planned> PlanInputs(const GatherHooks& hooks,
                                   const GroupPlan& parameters, int i) {
  const PlannedParameter& parameter = parameters.parameter(i);
  Planned planned = {.whole = hooks.Inputs(parameter.full_shape)};
  if (planned.whole.empty()) return Error(parameter, "gather no tensors");
  std::vector<int64_t> sums(planned.whole.size(), 0);
  const auto dim = static_cast<size_t>(parameter.shard_dim);
  for (int rank = 0; rank < parameters.num_shards(); ++rank) {
    const Inputs piece = hooks.Inputs(parameters.ShardShape(i, rank));
    if (piece.size() != planned.whole.size()) {
      return Error(parameter, absl::StrCat("gather ", planned.whole.size(),
                                           " tensors of the whole and ",
                                           piece.size(), " of a piece"));
    }
    for (size_t k = 0; k < piece.size(); ++k) {
      Shape shape = piece[k].shape;
      const bool has_dim =
          dim < shape.size() && shape.size() == planned.whole[k].shape.size();
      if (has_dim) {
        sums[k] += shape[dim];
        shape[dim] = planned.whole[k].shape[dim];
      }
      if (!has_dim || shape != planned.whole[k].shape ||
          piece[k].dtype != planned.whole[k].dtype) {
        return Error(
            parameter,
            absl::StrCat("gather ", Describe(piece[k]), " of rank ", rank,
                         "'s piece, which is no part of ",
                         Describe(planned.whole[k]), " along dim ", dim));
      }
    }
    planned.pieces.push_back(piece);
  }
  for (size_t k = 0; k < sums.size(); ++k) {
    if (sums[k] == planned.whole[k].shape[dim]) continue;
    return Error(parameter,
                 absl::StrCat("gather pieces of ", sums[k], " indices of dim ",
                              dim, " for ", Describe(planned.whole[k]),
                              "; cut shards at whole blocks, for example by "
                              "RaggedShard::rows_per_block"));
  }
  const GatherHooks::Input& first = planned.whole[0];
  if (!hooks.has_post_all_gather() &&
      (first.shape != parameter.full_shape ||
       !(IsFloatingPoint(first.dtype) || IsFloat8(first.dtype)))) {
    return Error(parameter, absl::StrCat("gather ", Describe(first),
                                         " to compute with; override "
                                         "has_post_all_gather to convert it"));
  }
  return planned;
}

/// Returns input k as bytes: the last dim is that many times as long.
PlannedParameter AsBytes(const PlannedParameter& parameter,
                         const Planned& planned, size_t k) {
  const GatherHooks::Input& whole = planned.whole[k];
  const int64_t bytes = SizeOf(whole.dtype);
  PlannedParameter input = {.name = absl::StrCat(parameter.name, " input ", k),
                            .full_shape = whole.shape,
                            .shard_dim = parameter.shard_dim};
  input.full_shape.back() *= bytes;
  const auto dim = static_cast<size_t>(parameter.shard_dim);
  const int64_t factor = dim + 1 == whole.shape.size() ? bytes : 1;
  int64_t begin = 0;
  for (const Inputs& piece : planned.pieces) {
    const int64_t end = begin + piece[k].shape[dim] * factor;
    input.intervals.push_back({begin, end});
    begin = end;
  }
  return input;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HookedGather>> HookedGather::Create(
    std::vector<std::shared_ptr<const GatherHooks>> hooks,
    const GroupPlan& parameters) {
  std::vector<Planned> planned;
  for (int i = 0; i < parameters.num_parameters(); ++i) {
    CH_ASSIGN_OR_RETURN(
        planned.emplace_back(),
        PlanInputs(*hooks[static_cast<size_t>(i)], parameters, i));
  }
  const DType dtype = planned[0].whole[0].dtype;
  bool is_plain = true;
  for (int i = 0; i < parameters.num_parameters(); ++i) {
    const Planned& of = planned[static_cast<size_t>(i)];
    is_plain = is_plain && of.whole.size() == 1 && of.whole[0].dtype == dtype &&
               of.whole[0].shape == parameters.parameter(i).full_shape;
    for (int rank = 0; is_plain && rank < parameters.num_shards(); ++rank) {
      is_plain = of.pieces[static_cast<size_t>(rank)][0].shape ==
                 parameters.ShardShape(i, rank);
    }
  }
  std::vector<std::vector<int>> indices(planned.size());
  if (is_plain) {
    for (size_t i = 0; i < indices.size(); ++i) {
      indices[i] = {static_cast<int>(i)};
    }
    return std::unique_ptr<HookedGather>(new HookedGather(
        std::move(hooks), parameters, parameters, dtype, std::move(indices)));
  }
  // Shard buffers have no gaps. The widest dtypes come first, so that all are
  // aligned.
  std::vector<PlannedParameter> inputs;
  for (const int64_t bytes : {8, 4, 2, 1}) {
    for (size_t i = 0; i < planned.size(); ++i) {
      indices[i].resize(planned[i].whole.size());
      for (size_t k = 0; k < planned[i].whole.size(); ++k) {
        if (SizeOf(planned[i].whole[k].dtype) != bytes) continue;
        indices[i][k] = static_cast<int>(inputs.size());
        inputs.push_back(
            AsBytes(parameters.parameter(static_cast<int>(i)), planned[i], k));
      }
    }
  }
  GroupPlan plan(std::move(inputs), parameters.num_shards());
  return std::unique_ptr<HookedGather>(
      new HookedGather(std::move(hooks), parameters, std::move(plan), kUInt8,
                       std::move(indices)));
}

void HookedGather::BeginForward() const {
  for (const auto& hooks : hooks_) hooks->BeginForward();
}

void HookedGather::Prepare() const {
  for (const auto& hooks : hooks_) hooks->Prepare();
}

Tensor HookedGather::ViewOf(const GatherHooks::Input& input, int64_t offset,
                            const std::shared_ptr<Storage>& storage) const {
  return MakeView(storage, offset * SizeOf(dtype_) / SizeOf(input.dtype),
                  input.shape, ContiguousStrides(input.shape), input.dtype);
}

void HookedGather::PreAllGather(int rank,
                                absl::FunctionRef<Tensor(int i)> shard_of,
                                const std::shared_ptr<Storage>& source) const {
  const NoGrad no_grad;
  for (size_t i = 0; i < hooks_.size(); ++i) {
    const Tensor shard = shard_of(static_cast<int>(i));
    if (shard.numel() == 0) continue;
    TensorList views;
    const Inputs inputs = hooks_[i]->Inputs(shard.sizes());
    for (size_t k = 0; k < inputs.size(); ++k) {
      views.push_back(
          ViewOf(inputs[k], plan_.shard_offset(indices_[i][k], rank), source));
    }
    hooks_[i]->PreAllGather(shard, views);
  }
}

TensorList HookedGather::Gathered(
    int i, const std::shared_ptr<Storage>& gathered) const {
  const auto at = static_cast<size_t>(i);
  TensorList views;
  const Inputs inputs = hooks_[at]->Inputs(parameters_.parameter(i).full_shape);
  for (size_t k = 0; k < inputs.size(); ++k) {
    views.push_back(
        ViewOf(inputs[k], plan_.full_offset(indices_[at][k]), gathered));
  }
  return views;
}

}  // namespace crosshatch::fsdp
