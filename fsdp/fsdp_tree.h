// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_TREE_H_
#define CROSSHATCH_FSDP_FSDP_TREE_H_

/// \file
/// FsdpTree: drives the sharded modules of one tree through forward and
/// backward. It owns what they share: streams, the order in which modules run,
/// and the end of backward. PyTorch's counterparts are FSDPStateContext and the
/// root's FSDPState.
///
/// What modules and autograd call enters here, at the top: BeforeForward,
/// AfterForward, BeforeBackward, GradientsComplete, AfterBackward. Each checks
/// the state and acts. Calls go down only: from the tree to a module's
/// FsdpState, to its groups, to their gradients. docs/fsdp.md lists them.
///
/// The first sharded module that runs makes itself and all sharded modules
/// below it one tree, with itself as the root. Trees are independent of each
/// other; they may share streams.

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

class FsdpTree final : public std::enable_shared_from_this<FsdpTree> {
 public:
  /// Returns the tree of `state`; if it is in none, makes one of which it is
  /// the root.
  static FsdpTree& Of(FsdpState& state);
  /// Makes a tree of `root` and all sharded modules below its own. They leave
  /// the trees they were in.
  /// \param comm what to share with another tree; null for its own.
  static void Form(FsdpState& root,
                   std::shared_ptr<CommContext> comm = nullptr);
  /// Makes calls of the modules of `state`, and their backward, enter its tree.
  /// Called once.
  static void Hook(FsdpState& state);
  /// Forgets `state`, which is being destroyed. All others leave with the root.
  void Remove(const FsdpState& state);

  CommContext& comm() { return *comm_; }
  const std::shared_ptr<CommContext>& shared_comm() const { return comm_; }

  /// The root's, which count for the tree.
  const Settings& settings() const { return states_.front()->settings(); }
  const FsdpState& root() const { return *states_.front(); }
  bool IsRoot(const FsdpState& state) const {
    return &state == states_.front();
  }

  /// \name Forward
  /// Also called for entry points other than Module::Call, which may call
  /// forward within.
  /// @{
  void BeforeForward(FsdpState& state, TensorList& inputs);
  /// \param last whether no other module of the list of `state` follows.
  void AfterForward(FsdpState& state, TensorList& outputs, bool last = true);
  /// @}

  /// Makes all-gathers from now on see what compute did to the shards (the
  /// optimizer's step).
  void OrderAllGathers();
  /// Reduces whatever is pending.
  void Finalize();
  /// Makes compute wait for all reductions, and ends the iteration.
  void Finish();

  /// Makes the next forward's all-gathers wait for `event` instead of all of
  /// compute.
  void set_post_optimizer_event(Event event) { post_optimizer_ = event; }

  /// Leaves the iteration, wherever it is.
  void Reset();

 private:
  class GradientSink;

  /// What CheckAllSharded saw.
  struct Seen {
    const nn::Module* module;
    size_t parameters;
    size_t children;
  };

  FsdpTree() = default;
  /// Checks that no parameter was registered after FullyShard, and that groups
  /// above took the tied parameters that were left to them.
  void CheckAllSharded();
  bool IsAsSeen() const;
  /// Poisons the rank where a backward through this tree has left gradients of
  /// plain parameters around it: they are of this rank's rows alone.
  void CheckRestHasNoGradients();
  /// Whether ranks hold the same buffers.
  void CompareBuffers();
  /// Finds out which rows of the batch a forward works on, if a module below
  /// needs to know (nn/batch_rows.h).
  void FindRows(const FsdpState& state, TensorSpan inputs);

  /// Makes autograd write gradients to the groups of `state`, for parameters
  /// that require them now.
  static void SyncRequiresGrad(FsdpState& state);

  /// \name The tree's part of a forward
  /// @{
  /// \param begins_order the root's forward: the order of modules begins anew.
  void BeginForward(const FsdpState& state, TensorSpan inputs,
                    bool begins_order);
  void EndForward(bool backward_follows);
  /// Watches for the gradients of the outputs of a forward.
  /// \returns whether any output has one.
  static bool WatchOutputs(FsdpState& state, const TensorList& outputs);
  /// @}

  /// \name Backward
  /// @{
  /// The gradients of an output of `state` are there. Called once for each
  /// output.
  void BeforeBackward(FsdpState& state);
  /// The tree's part of it.
  void BeginBackward();
  /// The last gradient of `group` has been written.
  void GradientsComplete(FsdpState& state, ParamGroup& group);
  /// The Backward of autograd ends.
  void AfterBackward();
  void EndReductions();
  /// @}

  /// Unshards modules that ranks may differ in using, all at once: nothing else
  /// puts their all-gathers in one order on every rank.
  void UnshardUnusedForForward();
  void UnshardUnusedForBackward();
  /// Issues the all-gathers of modules to come, nearest first.
  void PrefetchForward(FsdpState& running);
  void PrefetchBackward(const FsdpState& running);
  void Prefetch(const std::vector<FsdpState*>& order, const FsdpState& running,
                int depth);

  std::shared_ptr<CommContext> comm_;
  int forwards_ = 0;          ///< That run, within each other.
  int casting_forwards_ = 0;  ///< Those among them whose outputs are cast.
  bool in_backward_ = false;
  bool has_compared_buffers_ = false;
  BatchSplit batch_split_;
  std::optional<Event> post_optimizer_;
  std::vector<Seen> seen_;
  /// All states, the root first, in the order of the modules.
  std::vector<FsdpState*> states_;
  /// The order in which forward is expected to run: that of the modules at
  /// first, then that of the last iteration.
  std::vector<FsdpState*> expected_order_;
  size_t position_ = 0;
  /// The order in which this iteration's forwards ended; backward takes them
  /// from the end.
  std::vector<FsdpState*> forward_order_;
  /// The order in which they began, but for those that ranks may differ in.
  std::vector<FsdpState*> begin_order_;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_TREE_H_
