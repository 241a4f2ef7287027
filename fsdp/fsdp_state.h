// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_STATE_H_
#define CROSSHATCH_FSDP_FSDP_STATE_H_

/// \file
/// FsdpState: when a sharded module's groups are gathered, freed and reduced.
/// It hangs on the module's hooks and on the autograd graph:
///
///   before forward    gather, prefetch the next modules', wait
///   after forward     free (by policy); watch the outputs' gradients
///   before backward   gather, prefetch the previous modules', wait
///   gradients there   reduce, free
///   end of backward   whatever of this is left; compute waits for reductions
///
/// The first sharded module that runs makes itself and all below it one tree
/// (FsdpTree), with itself as the root.

#include <memory>
#include <string>
#include <vector>

#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

class FsdpState;

/// What the sharded modules of one tree share.
class FsdpTree {
 public:
  /// Makes a tree of `root` and all sharded modules below it.
  static void Form(nn::Module& root);

  CommContext& comm() { return *comm_; }
  const std::vector<FsdpState*>& states() const { return states_; }

  /// The root's forward begins: gathers must see what compute did to the
  /// shards (the optimizer's step).
  void BeginForward();
  /// The modules to gather ahead while `state` computes, nearest first.
  std::vector<FsdpState*> NextInForward(const FsdpState& state);
  std::vector<FsdpState*> NextInBackward(const FsdpState& state) const;

  void RecordForward(FsdpState& state) { forward_order_.push_back(&state); }
  /// Arranges for the end of the backward that is running.
  void BeginBackward();

 private:
  FsdpTree() = default;
  void EndBackward();

  std::shared_ptr<CommContext> comm_;
  int forward_prefetch_ = 0;
  int backward_prefetch_ = 0;
  /// All states, the root first, in the order of the modules.
  std::vector<FsdpState*> states_;
  /// The order in which forward is expected to run: that of the modules at
  /// first, then that of the last iteration.
  std::vector<FsdpState*> expected_order_;
  size_t position_ = 0;
  /// The order in which this iteration's forwards ended.
  std::vector<FsdpState*> forward_order_;
  /// The order in which they began.
  std::vector<FsdpState*> begin_order_;
  bool in_backward_ = false;
};

class FsdpState final : public nn::Attachment {
 public:
  static constexpr char kKey[] = "fsdp";

  /// The state of a sharded module; null for others.
  static FsdpState* Of(const nn::Module& module);

  FsdpState(nn::Module& module, FullyShardOptions options,
            std::vector<std::unique_ptr<ParamGroup>> groups);

  nn::Module& module() { return module_; }
  const FullyShardOptions& options() const { return options_; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const {
    return groups_;
  }

  void JoinTree(std::shared_ptr<FsdpTree> tree, bool is_root,
                const std::shared_ptr<CommContext>& comm);

  /// Issues the gathers of all groups.
  void Unshard();
  void Reshard();
  /// The part of the end of backward that concerns this module.
  void EndBackward();
  void FinishReductions();

 private:
  void PreForward(TensorList& inputs);
  void PostForward(TensorList& outputs);
  void PreBackward();
  void PostBackward(ParamGroup& group);
  bool reshard_after_forward() const {
    return options_.reshard_after_forward.value_or(!is_root_);
  }

  nn::Module& module_;
  const FullyShardOptions options_;
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::shared_ptr<FsdpTree> tree_;
  bool is_root_ = false;
  bool in_backward_ = false;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_STATE_H_
