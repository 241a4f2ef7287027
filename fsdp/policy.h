// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_POLICY_H_
#define CROSSHATCH_FSDP_POLICY_H_

/// \file
/// Options of FullyShard.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/fsdp/gather_hooks.h"
#include "crosshatch/fsdp/shard_extension.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {

/// Element types of a parameter's representations. Sharded parameters, their
/// gradients and the optimizer state always have the parameter's own dtype.
struct MixedPrecisionPolicy {
  /// Dtype of unsharded parameters, and so of compute. Unset: the parameter's
  /// own.
  std::optional<DType> param_dtype = {};
  /// Overrides param_dtype for single parameters, for example norms that stay
  /// in float32. If it returns nullopt, param_dtype applies. Parameters that
  /// are gathered in different dtypes form separate groups. Inputs are not cast
  /// to the override: modules of nn/ accept inputs of another dtype than their
  /// weight's and return outputs in the inputs' dtype.
  std::function<std::optional<DType>(const nn::Parameter&)>
      param_dtype_override = nullptr;
  /// Dtype in which gradients are accumulated and reduced. Unset: the
  /// parameter's own. For float16 see PlanGradientDivision.
  std::optional<DType> reduce_dtype = {};
  /// Dtype to which floating-point outputs of the module are cast. Unset: no
  /// cast. If modules with an output_dtype are nested, only the outputs of the
  /// outermost one are cast; the inner ones return the compute dtype.
  std::optional<DType> output_dtype = {};
  /// Whether floating-point inputs of the module are cast to param_dtype.
  bool cast_forward_inputs = true;
};

/// How far ahead parameters are unsharded. The root's values apply to the whole
/// tree.
struct PrefetchOptions {
  /// Number of sharded modules to unshard ahead of the one that computes.
  /// Forward follows the order in which modules ran in the last iteration (at
  /// first, the order of the modules). Backward follows the reverse of the
  /// order in which forwards ended. Each costs the memory of one module's
  /// unsharded parameters.
  int forward = 1;
  int backward = 1;
  /// Limit in bytes on unsharded parameters that nothing computes with yet.
  /// Prefetching stops before it would exceed the limit. Unset: only `forward`
  /// and `backward` limit it.
  std::optional<int64_t> bytes = {};

  friend bool operator==(const PrefetchOptions&,
                         const PrefetchOptions&) = default;
};

/// How gradients are reduced.
struct ReductionOptions {
  /// Divisor of the gradients' sum over the ranks of the parameter's mesh.
  /// Unset: the number of ranks that the batch is split over (the root's mesh),
  /// so that the result is a mean. This default fits losses from
  /// nn::MeanOverBatch (see "Losses and gradients" in docs/training.md). Set 1
  /// if the ranks' losses add up to the batch's loss.
  std::optional<double> divide_factor = {};
  /// Whether to divide in a separate pass after the collectives, for engines
  /// whose reductions can only sum.
  bool force_sum = false;
  /// Number of groups whose unsharded gradients may await reduction, in
  /// addition to those that backward is writing. Beyond it, backward waits for
  /// the oldest reduction. The root's value applies to the whole tree.
  int buffers = 1;
};

/// How a group is cut as one flat buffer, instead of parameter by parameter.
/// veScale-FSDP calls such shards RaggedShard.
struct RaggedShard {
  /// Returns the number of rows (indices of dim 0) of a parameter that stay
  /// together on one rank, for optimizers or quantization by blocks. A number
  /// of at least the parameter's rows keeps it whole on one rank. Unset: 1.
  std::function<int64_t(const nn::Parameter&)> rows_per_block = nullptr;
};

/// Options of FullyShard. One value may be used for many calls.
struct FullyShardOptions {
  MixedPrecisionPolicy mixed_precision = {};

  /// Whether to free unsharded parameters between forward and backward. Unset:
  /// true, except for the root, whose parameters backward needs first.
  std::optional<bool> reshard_after_forward = {};

  /// If not 0: after forward, keep the parameters sharded over this many
  /// neighbouring ranks of the sharding axis instead of freeing them. Backward
  /// then gathers among those ranks only. That moves less data over slow links
  /// and keeps 1 / post_forward_mesh_size of the unsharded parameters in
  /// memory. Must divide the size of the axis. The whole size is the same as 0,
  /// and 1 is the same as reshard_after_forward = false.
  int post_forward_mesh_size = 0;

  PrefetchOptions prefetch = {};
  ReductionOptions reduction = {};

  /// Whether to keep sharded parameters, their gradients and optimizer state in
  /// host memory (RankContext::host_allocator). Each gather first copies the
  /// shard to the device, and each reduced gradient is copied back, on
  /// dedicated streams.
  bool cpu_offload = false;

  /// Returns the dim to shard a parameter on; a negative dim counts from the
  /// end. Unset: 0. The dim may have any size.
  std::function<int(const nn::Parameter&)> shard_dim = nullptr;

  /// If set, the parameters of a group are laid out one after the other and cut
  /// into one piece per rank, of equal size where blocks of rows permit
  /// (ragged_plan.h). A gather and a reduction are then one collective of
  /// contiguous pieces each. A rank may have no rows of some parameters. Unset:
  /// each parameter is split evenly on its own.
  std::optional<RaggedShard> ragged_shard = {};

  /// Name of the axis of a 2-D mesh that replicates (HSDP); the other axis
  /// shards. Empty: the first axis of a 2-D mesh replicates. It is an error if
  /// the mesh passed to FullyShard or a 2-D mesh of mesh_of lacks the axis, or
  /// if it is the only axis of a mesh.
  std::string replicate_axis = {};

  /// Returns the mesh of a single parameter, 1-D or 2-D as for FullyShard. If
  /// it returns nullopt, the mesh passed to FullyShard applies. Parameters on
  /// different meshes form separate groups, for example experts on some of the
  /// ranks that the others are sharded over. Their gradients come from the
  /// tokens of all ranks and are divided like the others'. If the mesh has
  /// ranks outside of FullyShard's, reduction.divide_factor must be set.
  std::function<std::optional<DeviceMesh>(const nn::Parameter&)> mesh_of =
      nullptr;

  /// Returns hooks that convert a parameter before and after its all-gather
  /// (gather_hooks.h), or null. Parameters with hooks form groups of their own.
  /// Not with cpu_offload; hooks with PostAllGather not with
  /// post_forward_mesh_size.
  std::function<std::shared_ptr<const GatherHooks>(const nn::Parameter&)>
      gather_hooks = nullptr;

  /// Whether all ranks take parameter values from the first rank of the mesh,
  /// by one broadcast per parameter; the others need no values. If false, each
  /// rank cuts shards from its own values, which must be equal on all ranks.
  /// Parameters that the first rank has not materialized are left to
  /// Module::Materialize. Buffers are not broadcast: each rank creates or
  /// restores its own. A dry run of another rank assumes that the first has
  /// materialized all parameters.
  bool sync_from_first_rank = false;

  /// Parameters that are left unchanged: not sharded, gathered or reduced.
  std::vector<const nn::Parameter*> ignored_params = {};

  /// Combines this sharding with one that a parameter already has. Null: if a
  /// parameter of the call is a DTensor (tensor parallelism), the rules of
  /// DTensorExtensions apply to all parameters of the call. Otherwise each
  /// parameter is sharded on the mesh passed to FullyShard.
  std::shared_ptr<const ShardExtension> extension = nullptr;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_POLICY_H_
