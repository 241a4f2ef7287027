// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PARAM_GROUP_H_
#define CROSSHATCH_FSDP_PARAM_GROUP_H_

/// \file
/// ParamGroup: parameters that are gathered, freed and reduced together, and
/// the lifetime of their memory. FsdpTree (fsdp_tree.h) decides when;
/// docs/fsdp.md shows the states. group_gradients.h handles the gradients.
///
/// Buffers, each contiguous (group_plan.h):
///
/// | buffer              | dtype       | class              | lifetime        |
/// |---------------------|-------------|--------------------|-----------------|
/// | sharded parameters  | parameter's | kParameter         | always          |
/// | unsharded           | param_dtype | kGatheredParameter | Unshard ..      |
/// | parameters          |             |                    | Reshard         |
/// | post-forward shards | param_dtype | kGatheredParameter | ReshardAfter-   |
/// |                     |             |                    | Forward ..      |
/// |                     |             |                    | Unshard         |
///
/// If the dtypes differ or the shards are in host memory, there is also a shard
/// to gather from (kCommunication) for the duration of the collective.
///
/// If the parameters have gather hooks (gather_hooks.h), that shard and the
/// gathered buffer hold what the hooks gather. With PostAllGather, the gathered
/// buffer (kGatheredParameter) lives from Unshard to WaitForUnshard, which
/// leases the unsharded one.
///
/// Gathers run on the all-gather stream, which leases the unsharded buffer.
/// Compute waits for them in WaitForUnshard. Reshard records compute's use with
/// the lease, so that the next lease of the memory waits for compute.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/group_core.h"
#include "crosshatch/fsdp/group_gradients.h"
#include "crosshatch/fsdp/group_plan.h"
#include "crosshatch/fsdp/hooked_gather.h"
#include "crosshatch/fsdp/param_state.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::fsdp {

class ParamGroup {
 public:
  /// A parameter, and a note for Describe: "tied with lm_head.weight".
  struct Entry {
    nn::Parameter* parameter;
    std::string note;
  };

  /// Plans to shard the parameters over the last axis of `mesh` (1-D, or 2-D
  /// for HSDP, whose first axis replicates). Changes nothing yet.
  /// \param parameters have one dtype and one gather dtype, and are all trained
  ///     or all frozen.
  /// \param mesh includes this rank.
  /// \error kInvalidArgument naming a parameter that cannot be sharded, or if
  ///     the post-forward mesh does not divide the axis.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(
      std::string name, const std::vector<Entry>& parameters,
      const DeviceMesh& mesh, const FullyShardOptions& options,
      const ShardExtension& extension);

  /// Returns the dtype that `parameter` is gathered in. Integer parameters keep
  /// theirs.
  static DType ParamDType(const nn::Parameter& parameter,
                          const FullyShardOptions& options);

  /// Shards the parameters. Afterwards each Parameter's data() is a DTensor
  /// that views the group's shard buffer, with the parameter's values if it had
  /// any, and Get() returns the gathered tensor.
  /// \param extension the one passed to Create.
  /// \error The rank's first error if the broadcast from the first rank fails.
  absl::Status Commit(const ShardExtension& extension);

  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const std::string& name() const { return core_.name; }
  const GroupPlan& plan() const { return core_.plan; }
  std::vector<const nn::Parameter*> parameters() const;
  ParamState state() const { return state_; }
  GroupGradients& gradients() { return gradients_; }
  const GroupGradients& gradients() const { return gradients_; }
  int64_t unsharded_bytes() const {
    if (hooked_ != nullptr && !hooked_->has_post_all_gather()) {
      return gather_plan().full_elems() * SizeOf(gather_dtype());
    }
    return core_.plan.full_elems() * SizeOf(core_.param_dtype);
  }

  /// Sets the context of the tree that the group joins. Called before the first
  /// Unshard.
  void set_comm_context(std::shared_ptr<CommContext> comm) {
    core_.comm = std::move(comm);
  }
  /// Sets the mesh that the batch is split over. It counts only if it has all
  /// ranks of the group's mesh: experts on some of the ranks receive tokens of
  /// all.
  void set_batch_mesh(const DeviceMesh& mesh);

  /// See GroupCore.
  bool stays_on_compute() const { return core_.stays_on_compute(); }

  /// Calls BeginForward of the gather hooks.
  void BeginForward() const;
  /// Records that later gathers are ordered after the shards' present content.
  void MarkShardsOrdered() { ordered_version_ = shards_->version(); }
  /// Issues the all-gather unless it has been issued already. Uses the values
  /// of parameters whose data the program has replaced. Waits for compute if
  /// the shards changed after MarkShardsOrdered. If the values differ from
  /// those of the last gather, counts as a write to the unsharded parameters,
  /// so that a backward which saved the old ones fails. Checks that the shards
  /// of gathered parameters have not changed.
  void Unshard();
  /// Makes compute wait for an all-gather that has been issued.
  void WaitForUnshard();
  /// Frees the unsharded buffer after the work that was issued to compute.
  void Reshard();
  /// Reshards, but keeps post-forward shards if the options request them.
  void ReshardAfterForward();

  /// Takes effect with the next collective.
  void set_custom_comm(std::shared_ptr<const CustomComm> custom) {
    core_.custom = std::move(custom);
  }

  /// Sets whether the unsharded buffer's memory is kept, at the same address,
  /// while the parameters are sharded.
  void set_keep_unsharded(bool keep);

  /// Sets why the parameters are not in another group of their module, for
  /// Describe: "apart from root (float32): dtype".
  void set_separation_reason(std::string why) {
    separation_reason_ = std::move(why);
  }

  /// Describes the dtypes, the ranks' shares and the intervals.
  /// \param note ends the first line, e.g. "ZeRO-3".
  std::string Describe(const std::string& note, PlanDetail detail) const;

 private:
  ParamGroup(GroupCore core, std::vector<std::string> notes,
             const FullyShardOptions& options);

  absl::Status MakeCommunicators();
  absl::Status MakePostForwardMesh(int size);
  absl::Status MakeShards(const ShardExtension& extension);
  void AttachShards();
  bool IsReplaced(const GroupMember& member) const;
  void AdoptReplacedData();
  void OrderAllGather();
  std::string NamesOfParameters() const;
  void MakeForwardTensors();
  void MoveTo(ParamState next);
  absl::Status MakeHookedGather(const FullyShardOptions& options);
  /// The buffers of all-gathers: the parameters, or what the hooks gather.
  const GroupPlan& gather_plan() const {
    return hooked_ != nullptr ? hooked_->plan() : core_.plan;
  }
  DType gather_dtype() const {
    return hooked_ != nullptr ? hooked_->dtype() : core_.param_dtype;
  }
  void Lease(Storage& storage, Stream& stream);
  void PostAllGather();
  std::shared_ptr<Storage> AllGatherSource(Stream& gathering);
  void IssueAllGather(Communicator& comm, const GroupPlan& plan, int rank,
                      std::byte* source);
  void ReleaseUnsharded();

  GroupCore core_;
  const std::vector<std::string> notes_;  ///< By parameter.
  std::string separation_reason_;
  const bool sync_from_first_rank_;
  Communicator* all_gather_comm_ = nullptr;
  GroupGradients gradients_;

  ParamState state_ = ParamState::kSharded;
  std::shared_ptr<Storage> shards_;
  std::shared_ptr<Storage> unsharded_;
  std::unique_ptr<HookedGather> hooked_;  ///< Null without gather hooks.
  /// What an all-gather writes: `unsharded_`, unless PostAllGather converts it.
  std::shared_ptr<Storage> gathered_;
  /// The version of shards_ when they were last gathered.
  uint32_t unsharded_version_ = 0;
  uint32_t ordered_version_ = 0;
  Event unsharded_event_;

  bool keep_unsharded_ = false;
  Event kept_event_;  ///< Compute's last use of kept memory.

  /// The same full parameters, divided over the post-forward mesh.
  std::optional<GroupPlan> post_forward_plan_;
  std::optional<DeviceMesh> post_forward_mesh_;  ///< Owns the communicator.
  Communicator* post_forward_comm_ = nullptr;
  std::shared_ptr<Storage> post_forward_;
  Event post_forward_event_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PARAM_GROUP_H_
