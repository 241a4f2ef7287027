// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_PARAM_GROUP_H_
#define CROSSHATCH_FSDP_PARAM_GROUP_H_

/// \file
/// ParamGroup: parameters that are gathered, freed and reduced together, and
/// the life of their buffers. fsdp_state.h says when; docs/fsdp.md draws it.
///
/// Buffers of a group, each contiguous (group_plan.h):
///
/// | buffer             | dtype        | class              | lives |
/// |--------------------|--------------|--------------------|------------------|
/// | sharded parameters | parameter's  | kParameter         | always | |
/// gathered parameters| param_dtype  | kGatheredParameter | Unshard..Reshard |
/// | full gradients     | reduce_dtype | kGradient          | first gradient |
/// |                    |              |                    | .. next group's |
/// |                    |              |                    | reduction | |
/// sharded gradients  | parameter's  | kGradient          | reduction ..     |
/// |                    |              |                    | ZeroGrad |
///
/// and, where dtypes differ, a cast shard to gather from and a reduced shard to
/// cast from (kCommunication), for the length of the collective.
///
/// Streams: gathering runs on the all-gather stream, which leases the gathered
/// buffer; compute waits for it in WaitForUnshard; Reshard records compute's
/// use with the lease, so the next lease of that memory waits for compute.
/// Reducing runs on the reduce-scatter stream after what compute has issued,
/// and over replicas on the all-reduce stream; compute waits in
/// FinishReduction.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/group_plan.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::fsdp {

/// Where the parameters are.
enum class ParamState : uint8_t {
  kSharded,    ///< No gathered buffer.
  kGathering,  ///< The all-gather has been issued; compute has not waited.
  kGathered,   ///< Compute may use the gathered parameters.
};
const char* Name(ParamState state);

class ParamGroup {
 public:
  /// Plans to shard `parameters` over the last axis of `mesh` (1-D, or 2-D for
  /// HSDP, whose first axis replicates). Changes nothing yet. All have one
  /// dtype and are all trainable or all frozen.
  /// \param mesh the rank is a member of it.
  /// \error kInvalidArgument naming a parameter that cannot be sharded.
  static absl::StatusOr<std::unique_ptr<ParamGroup>> Create(
      std::string name, std::vector<nn::Parameter*> parameters,
      const DeviceMesh& mesh, const FullyShardOptions& options);

  /// Shards: each Parameter's data() becomes a DTensor that views the group's
  /// shard buffer, with the values it had if it had any, and Get() the tensor
  /// that is gathered.
  void Commit();

  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const std::string& name() const { return name_; }
  const GroupPlan& plan() const { return plan_; }
  std::vector<const nn::Parameter*> parameters() const;
  ParamState state() const { return state_; }
  bool trainable() const { return trainable_; }
  int64_t gathered_bytes() const {
    return plan_.full_elems() * SizeOf(gather_dtype_);
  }

  /// Joins the tree. Before the first Unshard.
  void set_comm_context(std::shared_ptr<CommContext> comm) {
    comm_ = std::move(comm);
  }

  /// Issues the all-gather; nothing to do unless kSharded.
  void Unshard();
  /// Makes compute wait for it and gives forward the gathered parameters.
  void WaitForUnshard();
  /// Gives the gathered buffer back, after what compute has issued.
  void Reshard();

  /// Whether every trainable parameter has its gradient of this backward.
  bool gradients_complete() const;
  /// Whether there is any gradient that has not been reduced.
  bool has_gradients() const { return full_gradients_->attached(); }
  /// Called when gradients_complete() turns true during a backward.
  void set_on_gradients_complete(std::function<void()> callback) {
    on_complete_ = std::move(callback);
  }

  /// Reduces the full gradients into the sharded ones: overwrites where a
  /// parameter has none, adds where it has. A parameter without a gradient
  /// takes part with zeros and keeps none.
  void ReduceGradients();
  /// Makes compute wait for the reduction. Ends the group's backward.
  void FinishReduction();

  /// The dtypes, the ranks' shares and the intervals, for people.
  std::string Describe() const;

 private:
  class Sink;
  struct Member {
    std::shared_ptr<nn::Parameter> parameter;
    std::shared_ptr<const ForwardForm> form;
    ShardedForm sharded_form;
    Tensor gathered;       ///< What forward computes with.
    Tensor full_gradient;  ///< Where backward writes.
    std::shared_ptr<Sink> sink;
    bool written = false;   ///< This backward: the destination has content.
    bool complete = false;  ///< This backward: all contributions are there.
  };

  ParamGroup(std::string name, GroupPlan plan, std::vector<Member> members,
             const DeviceMesh& mesh, const FullyShardOptions& options);
  const ShardExtension& extension() const;

  absl::Status MakeCommunicators();
  void MakeShards();
  void MakeForwardTensors();
  void MoveTo(ParamState next);
  void Log(const char* what, int64_t bytes) const;
  void OnMemberComplete();
  Tensor ShardView(const std::shared_ptr<Storage>& storage, DType dtype) const;

  std::string name_;
  GroupPlan plan_;
  std::vector<Member> members_;
  int shard_rank_ = 0;
  bool trainable_ = true;
  DType shard_dtype_ = kFloat32;
  DType gather_dtype_ = kFloat32;
  DType reduce_dtype_ = kFloat32;
  double gradient_scale_ = 1.0;
  std::shared_ptr<const ShardExtension> extension_;  ///< Null: the plain one.

  /// Keeps the communicators.
  const DeviceMesh mesh_;
  Communicator* gather_comm_ = nullptr;
  Communicator* reduce_comm_ = nullptr;
  Communicator* replicate_comm_ = nullptr;  ///< Null without HSDP.
  std::shared_ptr<CommContext> comm_;

  ParamState state_ = ParamState::kSharded;
  std::shared_ptr<Storage> shards_;
  std::shared_ptr<Storage> gathered_;
  std::shared_ptr<Storage> full_gradients_;
  std::weak_ptr<Storage>
      sharded_gradients_;  ///< Owned by the parameters' gradients.
  Event gathered_event_;
  Event reduced_event_;
  std::function<void()> on_complete_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_PARAM_GROUP_H_
