// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PARAM_GROUP_H_
#define CROSSHATCH_FSDP_PARAM_GROUP_H_

/// \file
/// ParamGroup: parameters that are gathered, freed and reduced together, and
/// the life of their memory. fsdp_state.h says when; docs/fsdp.md draws it;
/// group_gradients.h has the gradients' side.
///
/// Buffers, each contiguous (group_plan.h):
///
/// | buffer              | dtype       | class              | lives           |
/// |---------------------|-------------|--------------------|-----------------|
/// | sharded parameters  | parameter's | kParameter         | always          |
/// | unsharded parameters | param_dtype | kGatheredParameter | Unshard .. | |
/// |             |                    | Reshard         | | post-forward shards
/// | param_dtype | kGatheredParameter | ReshardAfter-   | | |             | |
/// Forward ..      | |                     |             |                    |
/// Unshard         |
///
/// and, where dtypes differ, a cast shard to gather from (kCommunication), for
/// the length of the collective.
///
/// Streams: gathering runs on the all-gather stream, which leases the gathered
/// buffer; compute waits for it in WaitForUnshard; Reshard records compute's
/// use with the lease, so the next lease of that memory waits for compute.

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
#include "crosshatch/fsdp/param_state.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::fsdp {

class ParamGroup {
 public:
  /// A parameter, and what a description says of it besides its shape: "tied
  /// with lm_head.weight".
  struct Entry {
    nn::Parameter* parameter;
    std::string note;
  };

  /// Plans to shard the parameters over the last axis of `mesh` (1-D, or 2-D
  /// for HSDP, whose first axis replicates). Changes nothing yet. All have one
  /// dtype, are gathered in one dtype, and are all trained or all frozen.
  /// \param mesh the rank is a member of it.
  /// \error kInvalidArgument naming a parameter that cannot be sharded, or for
  ///     a post-forward mesh that does not divide the axis.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(
      std::string name, const std::vector<Entry>& parameters,
      const DeviceMesh& mesh, const FullyShardOptions& options,
      const ShardExtension& extension);

  /// The dtype that `parameter` is gathered in. Integers stay what they are.
  static DType ParamDType(const nn::Parameter& parameter,
                          const FullyShardOptions& options);

  /// Shards: each Parameter's data() becomes a DTensor that views the group's
  /// shard buffer, with the values it had if it had any, and Get() the tensor
  /// that is gathered.
  /// \error the rank's first error, of values that other ranks give.
  /// \param extension that of Create.
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
    return core_.plan.full_elems() * SizeOf(core_.param_dtype);
  }

  /// Joins the tree. Before the first Unshard.
  void set_comm_context(std::shared_ptr<CommContext> comm) {
    core_.comm = std::move(comm);
  }
  /// The batch is split over the ranks of `mesh`, if it has all of the group's
  /// own: experts on some of the ranks get tokens of all.
  void SplitsBatchOf(const DeviceMesh& mesh);

  /// See GroupCore.
  bool stays_on_compute() const { return core_.stays_on_compute(); }

  /// Gathers from now on are ordered behind whatever has changed the shards so
  /// far.
  void ShardsAreOrdered() { ordered_version_ = shards_->version(); }
  /// Issues the all-gather; nothing to do where it has been issued. Checks that
  /// nobody changed the shards of parameters that are gathered. Takes the
  /// values of parameters whose data the program replaced. Waits for compute
  /// where the shards were changed since ShardsAreOrdered. Values other than
  /// those of the last gather count as a write to the unsharded parameters: a
  /// backward that saved the old ones stops.
  void Unshard();
  /// Makes compute wait for an all-gather that has been issued.
  void WaitForUnshard();
  /// Gives the unsharded buffer back, after what compute has issued.
  void Reshard();
  /// Does what Reshard does, but keeps post-forward shards where the options
  /// ask for them.
  void ReshardAfterForward();

  /// Holds from the next collective on.
  void set_custom_comm(std::shared_ptr<const CustomComm> custom) {
    core_.custom = std::move(custom);
  }

  /// Whether the unsharded buffer's memory is kept while the parameters are
  /// sharded, at one address for the next Unshard.
  void set_keep_unsharded(bool keep);

  /// Why the parameters are no part of another group of their module, for
  /// Describe: "apart from root (float32): dtype".
  void set_why_apart(std::string why) { why_apart_ = std::move(why); }

  /// The dtypes, the ranks' shares and the intervals, for people.
  /// \param note ends the first line: "ZeRO-3".
  std::string Describe(const std::string& note, PlanDetail detail) const;

 private:
  ParamGroup(GroupCore core, std::vector<std::string> notes,
             const FullyShardOptions& options);

  absl::Status MakeCommunicators();
  absl::Status MakePostForwardMesh(int size);
  absl::Status MakeShards(const ShardExtension& extension);
  void AttachShards();
  bool IsReplaced(const GroupMember& member) const;
  void TakeReplaced();
  void OrderAllGather();
  std::string NamesOfParameters() const;
  void MakeForwardTensors();
  void MoveTo(ParamState next);
  void LeaseUnsharded(Stream& stream);
  std::shared_ptr<Storage> AllGatherSource(Stream& gathering);
  void IssueAllGather(Communicator& comm, const GroupPlan& plan, int rank,
                      std::byte* source);
  void ReleaseUnsharded();

  GroupCore core_;
  const std::vector<std::string> notes_;  ///< Of the parameters.
  std::string why_apart_;
  const bool sync_from_first_rank_;
  Communicator* all_gather_comm_ = nullptr;
  GroupGradients gradients_;

  ParamState state_ = ParamState::kSharded;
  std::shared_ptr<Storage> shards_;
  std::shared_ptr<Storage> unsharded_;
  /// The version that shards_ had when they were gathered.
  uint32_t unsharded_version_ = 0;
  uint32_t ordered_version_ = 0;
  Event unsharded_event_;

  bool keep_unsharded_ = false;
  Event kept_event_;  ///< Compute's last use of what is kept.

  /// The same full parameters, cut for the post-forward mesh.
  std::optional<GroupPlan> post_forward_plan_;
  std::optional<DeviceMesh> post_forward_mesh_;  ///< Keeps the communicator.
  Communicator* post_forward_comm_ = nullptr;
  std::shared_ptr<Storage> post_forward_;
  Event post_forward_event_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PARAM_GROUP_H_
