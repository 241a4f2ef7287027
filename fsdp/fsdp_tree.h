// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_TREE_H_
#define CROSSHATCH_FSDP_FSDP_TREE_H_

/// \file
/// FsdpTree: runs the sharded modules of one tree through forward and backward.
/// It owns their shared state: streams, the order in which modules run, and the
/// end of backward. PyTorch's counterparts are FSDPStateContext and the root's
/// FSDPState.
///
/// Hooks of modules and of autograd call BeforeForward, AfterForward,
/// BeforeBackward, GradientsComplete and AfterBackward. Each checks the state
/// and acts. Calls go down only: from the tree to a module's FsdpState, to its
/// groups, to their gradients. docs/fsdp.md lists them.
///
/// The first sharded module that runs becomes the root of a tree of itself and
/// all sharded modules below it. Trees are independent of each other; they may
/// share streams.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "crosshatch/fsdp/batch_split.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// The sharded modules of one tree, in forward and backward.
class FsdpTree final : public std::enable_shared_from_this<FsdpTree> {
 public:
  /// Returns the tree of `state`. If it has none, forms one with `state` as the
  /// root.
  static FsdpTree& Of(FsdpState& state);
  /// Forms a tree of `root` and all sharded modules below it. They leave the
  /// trees that they were in.
  /// \param comm the context to share with another tree; null for a new one.
  static void Form(FsdpState& root,
                   std::shared_ptr<CommContext> comm = nullptr);
  /// Installs the hooks that connect the modules of `state` and their gradients
  /// with the state's tree. Called once.
  static void Hook(FsdpState& state);
  /// Removes `state`, which is being destroyed. If it is the root, all others
  /// leave the tree.
  void Remove(const FsdpState& state);

  CommContext& comm() { return *comm_; }
  const std::shared_ptr<CommContext>& shared_comm() const { return comm_; }

  /// Returns the root's settings; its tree-wide settings apply to all modules.
  const Settings& settings() const { return states_.front()->settings(); }
  const FsdpState& root() const { return *states_.front(); }
  bool IsRoot(const FsdpState& state) const {
    return &state == states_.front();
  }

  /// \name Forward
  /// Called for entry points other than Module::Call too. These may call the
  /// module's forward.
  /// @{
  void BeforeForward(FsdpState& state, TensorList& inputs);
  /// \param last whether this is the last module in the list of `state`.
  void AfterForward(FsdpState& state, TensorList& outputs, bool last = true);
  /// @}

  /// Makes later all-gathers wait for the work issued to compute so far, such
  /// as the optimizer's step.
  void OrderAllGathers();
  /// Issues the reductions of all pending gradients.
  void Finalize();
  /// Makes compute wait for all reductions and ends the iteration.
  void Finish();

  /// Makes the next forward's all-gathers wait for `event` instead of for all
  /// work issued to compute.
  void set_post_optimizer_event(Event event) { post_optimizer_ = event; }

  /// Abandons the iteration at any point.
  void Reset();

 private:
  class GradientSink;

  /// The size of a module at the last CheckAllSharded.
  struct Seen {
    const nn::Module* module;
    size_t parameters;
    size_t children;
  };

  FsdpTree() = default;
  /// Checks that no parameter was registered after FullyShard, and that groups
  /// of ancestors hold the tied parameters omitted below.
  void CheckAllSharded();
  bool IsUnchanged() const;
  /// Poisons the rank if parameters that no FullyShard has received gradients
  /// in this backward. Such gradients cover only this rank's part of the batch.
  void CheckNoUnreducedGradients();
  /// Checks that all ranks hold the same buffers; poisons the rank if not.
  void CompareBuffers();
  /// Determines which rows of the batch a forward works on, if a module below
  /// needs it (nn/batch_rows.h).
  void BeginBatchSplit(const FsdpState& state, TensorSpan inputs);

  /// Makes autograd write gradients to the groups of `state`, for the
  /// parameters that require them now.
  static void SyncRequiresGrad(FsdpState& state);

  /// \name The whole tree's part of a forward
  /// @{
  /// \param begins_order whether this is the root's forward, which restarts the
  ///     order of modules.
  void BeginForward(const FsdpState& state, TensorSpan inputs,
                    bool begins_order);
  void EndForward(bool backward_follows);
  /// Observes the gradients of a forward's outputs.
  /// \returns whether any output requires a gradient.
  static bool ObserveOutputs(FsdpState& state, const TensorList& outputs);
  /// @}

  /// \name Backward
  /// @{
  /// Called when an output of `state` has its gradient, once per output.
  void BeforeBackward(FsdpState& state);
  /// Begins the whole tree's backward.
  void BeginBackward();
  /// Called when the last gradient of `group` has been written.
  void GradientsComplete(FsdpState& state, ParamGroup& group);
  /// Called when autograd's Backward ends.
  void AfterBackward();
  void EndReductions();
  /// @}

  /// Unshards all modules that ranks may differ in using. Issued at once,
  /// because no other event gives their all-gathers the same order on every
  /// rank.
  void UnshardUnusedForForward();
  void UnshardUnusedForBackward();
  /// Issues the all-gathers of the next modules, nearest first.
  void PrefetchForward(FsdpState& running);
  void PrefetchBackward(const FsdpState& running);
  void Prefetch(const std::vector<FsdpState*>& order, const FsdpState& running,
                int depth);

  std::shared_ptr<CommContext> comm_;
  int forwards_ = 0;          ///< Running, nested.
  int casting_forwards_ = 0;  ///< Of these, with cast outputs.
  bool in_backward_ = false;
  bool has_compared_buffers_ = false;
  BatchSplit batch_split_;
  std::optional<Event> post_optimizer_;
  std::vector<Seen> seen_;
  /// All states in the order of the modules, the root first.
  std::vector<FsdpState*> states_;
  /// The expected order of forwards: at first that of the modules, then that of
  /// the last iteration.
  std::vector<FsdpState*> expected_order_;
  size_t position_ = 0;
  /// The order in which this iteration's forwards ended. Backward consumes it
  /// from the end.
  std::vector<FsdpState*> forward_order_;
  /// The order in which forwards began, without modules that ranks may differ
  /// in using.
  std::vector<FsdpState*> begin_order_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_TREE_H_
