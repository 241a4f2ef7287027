// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_POLICY_H_
#define CROSSHATCH_FSDP_POLICY_H_

/// \file
/// What a user chooses when sharding a module: FullyShardOptions.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/fsdp/shard_extension.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// Element types of the forms a parameter takes. Sharded parameters, their
/// gradients and the optimizer keep the parameter's own dtype throughout.
struct MixedPrecisionPolicy {
  /// Of unsharded parameters, and so of compute. Unset: the parameter's own.
  std::optional<DType> param_dtype = {};
  /// Of single parameters (norms kept in float32); where it gives nothing,
  /// param_dtype holds. Parameters gathered in different dtypes become groups
  /// of their own. Inputs are not cast for it: the modules of nn/ take inputs
  /// of another dtype than their weight's and give outputs of the inputs'.
  std::function<std::optional<DType>(const nn::Parameter&)>
      param_dtype_override = nullptr;
  /// In which gradients are accumulated and reduced. Unset: the parameter's
  /// own. For float16 see gradient_division.h.
  std::optional<DType> reduce_dtype = {};
  /// Floating-point outputs of the module are cast to it. Unset: left alone.
  /// Where one value serves modules within one another, those that run within
  /// a forward whose outputs are cast go on in the compute dtype: what leaves
  /// the outermost of them is cast.
  std::optional<DType> output_dtype = {};
  /// Cast floating-point inputs of the module to param_dtype.
  bool cast_forward_inputs = true;
};

/// What is unsharded before a module needs it. The options of the root hold for
/// the whole tree.
struct PrefetchOptions {
  /// How many groups are unsharded ahead of the one that computes, in forward
  /// (by the order of the modules) and in backward (by the reverse of the order
  /// in which forward ran). Each costs one group's unsharded parameters of
  /// memory.
  int forward = 1;
  int backward = 1;
  /// Bytes of unsharded parameters that nothing computes with yet: prefetching
  /// stops before it would exceed them. Unset: no limit but the depths above.
  std::optional<int64_t> bytes = {};

  friend bool operator==(const PrefetchOptions&,
                         const PrefetchOptions&) = default;
};

/// How gradients are reduced.
struct ReductionOptions {
  /// Gradients are summed over the ranks of the parameter's mesh and divided by
  /// this. Unset: by the number of ranks that the batch is split over, which
  /// gives the mean: those of the root's mesh. So losses are as
  /// nn::MeanOverBatch makes them ("Losses and gradients" in docs/training.md).
  /// 1 is for a program whose losses add up to the batch's instead.
  std::optional<double> divide_factor = {};
  /// Divide after the collectives, by a pass of its own, for an engine that
  /// can do nothing but sum.
  bool force_sum = false;
  /// How many groups' unsharded gradients, beyond those that backward is
  /// writing, may wait for their reduction: the next one waits for the oldest.
  /// Of the root's options.
  int buffers = 1;
};

/// Options of FullyShard. One value serves many calls.
struct FullyShardOptions {
  MixedPrecisionPolicy mixed_precision = {};

  /// Free unsharded parameters between forward and backward. Unset: yes, except
  /// for the root, whose parameters backward needs first.
  std::optional<bool> reshard_after_forward = {};

  /// Not 0: instead of freeing all after forward, keep shards spread over this
  /// many neighbouring ranks of the sharding axis, and gather for backward
  /// among them alone: less to move over slow links, for 1 / that many of the
  /// unsharded parameters. Divides the axis; its whole size is the same as 0, 1
  /// the same as reshard_after_forward false.
  int post_forward_mesh_size = 0;

  PrefetchOptions prefetch = {};
  ReductionOptions reduction = {};

  /// Keep sharded parameters, their gradients and so what an optimizer holds
  /// for them in host memory (RankContext::host_allocator). A shard is copied
  /// to the device for each gather and a reduced gradient back, on streams of
  /// their own.
  bool cpu_offload = false;

  /// The dim to shard a parameter on. Unset: 0. Any dim of any size will do.
  std::function<int(const nn::Parameter&)> shard_dim = nullptr;

  /// The axis of a 2-D mesh that replicates (HSDP); the other one shards.
  /// Empty: the first one replicates. An error for a 2-D mesh without it, and
  /// for a 1-D mesh of it alone.
  std::string replicate_axis = {};

  /// The mesh of single parameters, 1-D or 2-D as the one FullyShard is given;
  /// where it gives nothing, that one holds. Parameters of different meshes
  /// become groups of their own: experts, say, on a part of the ranks that the
  /// others are spread over. Their gradients, which come of the tokens of all
  /// ranks, are divided as the others' are. A mesh that has ranks beyond those
  /// that FullyShard is given needs reduction.divide_factor.
  std::function<std::optional<DeviceMesh>(const nn::Parameter&)> mesh_of =
      nullptr;

  /// Shards are cut from the values that the first rank of the mesh has, which
  /// are broadcast one parameter after the other; the other ranks need have
  /// none. Unset: each rank cuts from its own, which must be equal. Parameters
  /// that the first rank has not materialized are left to Materialize, and so
  /// are buffers, of which each rank makes or restores its own. A dry run of
  /// another rank takes the first to have materialized all.
  bool sync_from_first_rank = false;

  /// Left as they are: neither sharded, gathered nor reduced.
  std::vector<const nn::Parameter*> ignored_params = {};

  /// Joins this sharding with another that a parameter already has. Null: if a
  /// parameter of the call is a DTensor (tensor parallelism), the rules of
  /// DTensorExtensions for all parameters of the call; else each parameter is
  /// sharded on the mesh that FullyShard is given.
  std::shared_ptr<const ShardExtension> extension = nullptr;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_POLICY_H_
