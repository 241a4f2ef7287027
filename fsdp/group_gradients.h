// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_GROUP_GRADIENTS_H_
#define CROSSHATCH_FSDP_GROUP_GRADIENTS_H_

/// \file
/// GroupGradients: the gradients of a group, from where backward writes them to
/// where the optimizer reads them.
///
/// Buffers, each contiguous (group_plan.h):
///
/// | buffer            | dtype        | class     | lives                     |
/// |-------------------|--------------|-----------|---------------------------|
/// | full gradients    | reduce_dtype | kGradient | first gradient .. the     |
/// |                   |              |           | reduction of a next group |
/// | partial reduction | reduce_dtype | kGradient | reduction without the     |
/// |                   |              |           | replicas .. one with them |
/// | sharded gradients | parameter's  | kGradient | reduction .. ZeroGrad     |
///
/// and, where dtypes differ or gradients add up, a reduced shard to take them
/// from (kCommunication), for the length of the reduction.
///
/// Reducing runs on the reduce-scatter stream after what compute has issued,
/// and over replicas on the all-reduce stream; compute waits in Finish.

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

class GroupGradients {
 public:
  /// \param core outlives it.
  explicit GroupGradients(GroupCore& core);
  ~GroupGradients();
  GroupGradients(const GroupGradients&) = delete;
  GroupGradients& operator=(const GroupGradients&) = delete;

  absl::Status MakeCommunicators();
  /// Makes the tensors that backward writes gradients to. Call when core's
  /// unsharded tensors are there.
  void MakeDestinations();

  /// Whether any parameter is trained, and whether all are: of a group that
  /// was told to train since, or not to, some may be.
  bool trainable() const;
  bool trains_all() const;
  /// Gives the unsharded tensors the requires_grad of their parameters.
  /// \param make_sink makes the sink of parameter `index`, which calls Acquire
  ///     and Complete; called once for each parameter that requires grad.
  void SyncRequiresGrad(
      absl::FunctionRef<std::shared_ptr<GradSink>(size_t index)> make_sink);

  /// Returns where backward writes the gradient of parameter `index`.
  GradDestination Acquire(size_t index);
  /// Marks that parameter `index` has its gradient of this backward.
  /// \returns complete()
  bool Complete(size_t index);
  /// Whether every trained parameter has its gradient of this backward.
  bool complete() const;
  /// Whether there are gradients that have not been reduced.
  bool pending() const { return full_->attached(); }
  /// Whether there are gradients that have not been reduced, or not over the
  /// replicas.
  bool unfinished() const { return pending() || partial_ != nullptr; }

  /// Reduces what is pending, also from before the parameters were frozen, into
  /// the sharded gradients: overwrites where no parameter has a gradient, adds
  /// where one has. A parameter without a gradient takes part with zeros and
  /// keeps none; which those are is in the label that ranks compare, so that a
  /// difference is an error on every rank that names parameters and ranks. What
  /// it does is a ReductionPlan.
  void Reduce(const Settings& settings);
  /// Whether this backward, or these backwards, have reduced.
  bool took_part() const { return took_part_; }
  /// All of these backwards' reductions have been asked for.
  /// \param reports where this rank had nothing to reduce, though the
  ///     parameters are trained, it says so to the other ranks instead of
  ///     leaving them to wait: a barrier, which is an error on every rank where
  ///     one of them reduced.
  void EndReductions(const Settings& settings, bool reports);
  /// Makes compute wait for the reductions.
  void Finish();
  /// The backward is over: the next one completes anew.
  void EndBackward();
  /// Drops what is pending or partly reduced, as if no backward had run. The
  /// parameters' gradients stay.
  void Reset();

 private:
  struct Destination {
    Tensor full;  ///< Where backward writes.
    bool has_sink = false;
    bool written = false;   ///< `full` has content.
    bool complete = false;  ///< This backward: all contributions are there.
    bool partial = false;   ///< The partial reduction has content.
  };

  void AttachFull();
  std::shared_ptr<Storage> Lease(DType dtype, MemoryClass memory_class);
  /// Whether some parameter has a gradient.
  bool accumulates() const;
  /// Gives the sharded gradients; where there are gradients, with them in their
  /// places.
  std::shared_ptr<Storage> PrepareSharded(bool accumulate);
  /// The name of the group, and the trained parameters that have no gradient on
  /// this rank.
  /// \param with_partial a gradient in the partial reduction is one.
  const std::string& Label(bool with_partial, bool reduce_unused);
  void IssueBarrier(Communicator* comm, Stream& stream);

  /// What a plan's steps work on.
  struct Buffers {
    std::shared_ptr<Storage> reduced;
    std::shared_ptr<Storage> sharded;
  };
  ReductionFacts FactsOf(const Settings& settings) const;
  void RunStep(const ReductionStep& step, Stream& stream, Buffers& buffers,
               bool reduce_unused);
  Stream& StreamOf(ReductionStream stream) const;
  /// Null where the plan has no such buffer.
  const std::shared_ptr<Storage>& StorageOf(ReductionBuffer buffer,
                                            const Buffers& buffers) const;
  /// All elements of one of this rank's shard.
  Tensor ViewOf(ReductionBuffer buffer, const Buffers& buffers) const;
  void ReduceScatter(const Storage& target, double scale, Stream& stream,
                     bool reduce_unused);
  void AllReduce(const Storage& target, double scale, Stream& stream,
                 bool reduce_unused);
  /// Copies or adds, and gives up what was read.
  void Transfer(const ReductionStep& step, Stream& stream, Buffers& buffers);
  /// Gives the parameters that took part their gradients, on the stream that
  /// wrote them.
  void PublishGradients(const std::shared_ptr<Storage>& sharded,
                        bool reduce_unused);

  GroupCore& core_;
  Communicator* reduce_comm_ = nullptr;
  Communicator* replicate_comm_ = nullptr;  ///< Null without replicas.
  std::vector<Destination> destinations_;
  std::shared_ptr<Storage> full_;
  std::shared_ptr<Storage> partial_;
  /// Owned by the parameters' gradients.
  std::weak_ptr<Storage> sharded_;
  Event reduced_;
  Event reported_;
  bool took_part_ = false;
  std::vector<bool> lacking_;  ///< By parameter: what lacking_label_ names.
  std::string lacking_label_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_GROUP_GRADIENTS_H_
