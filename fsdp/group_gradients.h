// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_GRADIENTS_H_
#define CROSSHATCH_FSDP_GROUP_GRADIENTS_H_

/// \file
/// GroupGradients: the gradients of a group, from the buffer that backward
/// writes to the shards that the optimizer reads.
///
/// Buffers, each contiguous (group_plan.h):
///
/// | buffer            | dtype        | class     | lifetime                  |
/// |-------------------|--------------|-----------|---------------------------|
/// | full gradients    | reduce_dtype | kGradient | first gradient .. the     |
/// |                   |              |           | reduction of a next group |
/// | partial reduction | reduce_dtype | kGradient | reduction without the     |
/// |                   |              |           | replicas .. one with them |
/// | sharded gradients | parameter's  | kGradient | reduction .. ZeroGrad     |
///
/// If dtypes differ, gradients accumulate or shards are offloaded, there is
/// also a reduced shard (kCommunication) for the duration of the reduction.
///
/// The reduction runs on the reduce-scatter stream, after the work issued to
/// compute so far. The sum over replicas runs on the all-reduce stream. Compute
/// waits for both in Finish.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/fsdp/group_core.h"
#include "crosshatch/fsdp/reduction_plan.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::fsdp {

/// The gradients of one group on one rank.
class GroupGradients {
 public:
  /// \param core must outlive this object.
  explicit GroupGradients(GroupCore& core);
  ~GroupGradients();
  GroupGradients(const GroupGradients&) = delete;
  GroupGradients& operator=(const GroupGradients&) = delete;

  absl::Status MakeCommunicators();
  /// Creates the tensors that backward writes gradients to.
  /// \pre the unsharded tensors of `core` exist.
  void MakeDestinations();

  /// Return whether any parameter is trained, and whether all are. A program
  /// may freeze or unfreeze single parameters after FullyShard.
  bool trainable() const;
  bool trains_all() const;
  /// Sets requires_grad of the unsharded tensors to that of their parameters.
  /// \param make_sink creates the sink of parameter `index`, which calls
  ///     Acquire and Complete. Called once for each parameter that requires
  ///     grad.
  void SyncRequiresGrad(
      absl::FunctionRef<std::shared_ptr<GradSink>(size_t index)> make_sink);

  /// Returns the tensor that backward writes the gradient of parameter `index`
  /// to.
  GradDestination Acquire(size_t index);
  /// Records that parameter `index` has its whole gradient of this backward.
  /// \returns complete()
  bool Complete(size_t index);
  /// Returns whether every trained parameter has its gradient of this backward.
  bool complete() const;
  /// Returns whether there are gradients that have not been reduced.
  bool pending() const { return full_->attached(); }
  /// Returns whether there are gradients that have not been reduced, or not yet
  /// over the replicas.
  bool unfinished() const { return pending() || partial_ != nullptr; }

  /// Reduces pending gradients into the sharded gradients as a ReductionPlan,
  /// including those of parameters that were frozen since. Adds to the sharded
  /// gradients if some parameter has a gradient; otherwise overwrites them.
  ///
  /// A parameter without a gradient contributes zeros and keeps none. Ranks
  /// compare a label that names these parameters. If the labels differ, every
  /// rank gets an error that names parameters and ranks.
  void Reduce(const Settings& settings);
  /// Returns whether the group has reduced since the last EndReductions.
  bool has_reduced() const { return has_reduced_; }
  /// Ends the reductions of this iteration's backwards.
  /// \param reports if this rank reduced nothing although parameters are
  ///     trained, whether it issues a barrier instead. The barrier becomes an
  ///     error on every rank if another rank reduced, so that none waits in
  ///     vain.
  void EndReductions(const Settings& settings, bool reports);
  /// Makes compute wait for the reductions.
  void Finish();
  /// Ends a backward: the next one must complete every gradient again.
  void EndBackward();
  /// Drops pending and partly reduced gradients. The parameters' gradients
  /// stay.
  void Reset();

 private:
  struct Destination {
    Tensor full;  ///< What backward writes.
    bool has_sink = false;
    bool written = false;   ///< `full` has content.
    bool complete = false;  ///< This backward: all contributions are in.
    bool partial = false;   ///< The partial reduction has content.
  };

  void AttachFull();
  std::shared_ptr<Storage> Lease(DType dtype, MemoryClass memory_class);
  /// Returns whether some parameter has a gradient.
  bool accumulates() const;
  /// Returns the sharded gradients. If `accumulate` is set, the existing
  /// gradients are in their places.
  std::shared_ptr<Storage> PrepareSharded(bool accumulate);
  /// Returns the name of the group and of its trained parameters that have no
  /// gradient on this rank.
  /// \param with_partial whether a gradient in the partial reduction counts.
  const std::string& Label(bool with_partial, bool reduce_unused);
  void IssueBarrier(Communicator* comm, Stream& stream);

  /// Buffers of one reduction.
  struct Buffers {
    std::shared_ptr<Storage> reduced;
    std::shared_ptr<Storage> sharded;
  };
  ReductionFacts FactsOf(const Settings& settings) const;
  void RunStep(const ReductionStep& step, Stream& stream, Buffers& buffers,
               bool reduce_unused);
  Stream& StreamOf(ReductionStream stream) const;
  /// Returns null if the plan has no such buffer.
  const std::shared_ptr<Storage>& StorageOf(ReductionBuffer buffer,
                                            const Buffers& buffers) const;
  /// Returns a flat view of all elements in one of this rank's shard buffers.
  Tensor ViewOf(ReductionBuffer buffer, const Buffers& buffers) const;
  void ReduceScatter(const Storage& target, double scale, Stream& stream,
                     bool reduce_unused);
  void AllReduce(const Storage& target, double scale, Stream& stream,
                 bool reduce_unused);
  /// Copies or adds, and frees the source.
  void Transfer(const ReductionStep& step, Stream& stream, Buffers& buffers);
  /// Sets the gradients of the parameters that took part, on the stream that
  /// wrote them.
  void PublishGradients(const std::shared_ptr<Storage>& sharded,
                        bool reduce_unused);

  GroupCore& core_;
  Communicator* reduce_comm_ = nullptr;
  Communicator* replicate_comm_ = nullptr;  ///< Null without replicas.
  std::vector<Destination> destinations_;
  std::shared_ptr<Storage> full_;
  std::shared_ptr<Storage> partial_;
  /// The parameters' gradients own it.
  std::weak_ptr<Storage> sharded_;
  Event reduced_;
  Event reported_;
  bool has_reduced_ = false;
  std::vector<bool> lacking_;  ///< By parameter: lacking_label_ has it.
  std::string lacking_label_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_GRADIENTS_H_
