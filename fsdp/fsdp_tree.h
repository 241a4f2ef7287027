// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_TREE_H_
#define CROSSHATCH_FSDP_FSDP_TREE_H_

/// \file
/// FsdpTree: what the sharded modules of one tree share: streams, the order in
/// which they run, and the end of backward. Trees are independent of each
/// other; they may share streams.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "crosshatch/fsdp/batch_split.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/iteration.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

class FsdpState;

class FsdpTree : public std::enable_shared_from_this<FsdpTree> {
 public:
  /// Makes a tree of `root` and all sharded modules below its own. They leave
  /// the trees they were in.
  /// \param comm what to share with another tree; null for its own.
  static void Form(FsdpState& root,
                   std::shared_ptr<CommContext> comm = nullptr);

  CommContext& comm() { return *comm_; }
  const std::shared_ptr<CommContext>& shared_comm() const { return comm_; }
  const std::vector<FsdpState*>& states() const { return states_; }

  /// The state goes: its module was destroyed, or it joins another tree. With
  /// the root all others leave.
  void Forget(const FsdpState& state);

  TreeSettings& settings() { return settings_; }

  /// Gathers from now on see what compute did to the shards (the optimizer's
  /// step).
  void BeginGathering();
  /// \name What the states tell of their modules
  /// @{
  /// \param of_root the order of modules begins anew.
  void BeginForward(bool of_root);
  void EndForward(bool backward_follows);
  void BeginBackward() { Take(TreeEvent::kBackwardBegins, {}); }
  /// A forward whose outputs are cast begins, and has ended. \returns whether
  /// it ran within no other such.
  void BeginCasting() { Take(TreeEvent::kCastingForwardBegins, {}); }
  bool EndCasting();
  /// @}
  /// A forward of a module of the tree begins, and has ended. Between the
  /// outermost two it is known which rows of the batch `inputs` have, where a
  /// module below wants to know (nn/batch_rows.h).
  void EnterForward(const FsdpState& state, TensorSpan inputs);
  void ExitForward();
  /// Issues the gathers of modules to come, nearest first.
  void PrefetchForward(FsdpState& running);
  void PrefetchBackward(FsdpState& running);

  void RecordForward(FsdpState& state) { forward_order_.push_back(&state); }

  /// Reduces whatever is pending.
  void Finalize() { Take(TreeEvent::kFinalizeIsAskedFor, Facts()); }
  /// Makes compute wait for all reductions, and ends the iteration.
  void Finish();

  /// What the next forward's gathers wait for instead of all of compute.
  void set_post_optimizer_event(Event event) { post_optimizer_ = event; }

  /// Leaves the iteration, whatever has been done of it.
  void Reset();

 private:
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
  /// Whether ranks hold the same buffers: before the first forward, and where
  /// replicas are compared anyway, before each.
  void CompareBuffers();
  TreeFacts Facts() const;
  void Take(TreeEvent event, const TreeFacts& facts);
  void Do(TreeAction action);
  /// Gathers those that ranks may differ in using, all at once: nothing else
  /// puts their gathers in one order on every rank.
  void GatherUnused(bool in_backward);
  void Prefetch(const std::vector<FsdpState*>& order, const FsdpState& running,
                int depth);
  void ReduceModules();
  void EndReductions();

  std::shared_ptr<CommContext> comm_;
  TreeSettings settings_;
  TreeIteration iteration_;
  int forwards_ = 0;  ///< That run, within each other.
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
