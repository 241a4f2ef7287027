// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_FSDP_TREE_H_
#define CROSSHATCH_FSDP_FSDP_TREE_H_

/// \file
/// FsdpTree: what the sharded modules of one tree share: streams, the order in
/// which they run, and the end of backward. It hears what happens to them, asks
/// the machines of iteration.h what is to be done, and does it, on itself and
/// on its modules' states. Trees are independent of each other; they may share
/// streams.
///
/// The first sharded module that runs makes itself and all below it one tree,
/// with itself as the root.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "crosshatch/fsdp/batch_split.h"
#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/iteration.h"
#include "crosshatch/fsdp/module_events.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

class FsdpTree final : public ModuleEvents,
                       public std::enable_shared_from_this<FsdpTree> {
 public:
  /// The tree that `state` is in; null where it is in none.
  static FsdpTree* Find(const FsdpState& state);
  /// The tree that `state` is in; where it is in none, a new one of which it is
  /// the root.
  static FsdpTree& Of(FsdpState& state);
  /// Makes a tree of `root` and all sharded modules below its own. They leave
  /// the trees they were in.
  /// \param comm what to share with another tree; null for its own.
  static void Form(FsdpState& root,
                   std::shared_ptr<CommContext> comm = nullptr);
  /// Makes calls of the modules of `state` forwards in its tree. Once.
  static void Hook(FsdpState& state);

  CommContext& comm() { return *comm_; }
  const std::shared_ptr<CommContext>& shared_comm() const { return comm_; }

  /// The root's, which count for the tree.
  Settings& settings() { return states_.front()->settings(); }

  /// \name What happens around a forward
  /// Also for entry points other than Module::Call, which may call forward
  /// within.
  /// @{
  void BeginForward(FsdpState& state, TensorList& inputs);
  /// \param frees whether the parameters' use in forward ends with it.
  void EndForward(FsdpState& state, TensorList& outputs, bool frees = true);
  /// @}

  /// \name ModuleEvents
  /// @{
  void Happened(FsdpState& state, ModuleEvent event,
                ParamGroup* group) override;
  /// With the root all others leave.
  void Went(const FsdpState& state) override;
  /// @}

  /// Gathers from now on see what compute did to the shards (the optimizer's
  /// step).
  void BeginGathering();
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

  /// A forward that begins.
  struct Forward {
    const FsdpState& state;
    TensorSpan inputs;
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
  /// Finds out which rows of the batch `forward` works on, where a module below
  /// wants to know (nn/batch_rows.h).
  void FindRows(const Forward& forward);

  TreeFacts Facts() const;
  ModuleFacts FactsOf(const FsdpState& state) const;
  /// \param forward the one that begins; null at other events.
  void Take(TreeEvent event, const TreeFacts& facts,
            const Forward* forward = nullptr);
  void Do(TreeAction action, const Forward* forward);
  /// \param group the one that the event is of, where it is of one; else null.
  /// \param inputs of the forward that begins; null at other events.
  void Take(FsdpState& state, ModuleEvent event, const ModuleFacts& facts,
            ParamGroup* group = nullptr, const TensorList* inputs = nullptr);
  void Do(FsdpState& state, ModuleAction action, const ModuleFacts& facts,
          ParamGroup* group, const TensorList* inputs);
  /// For each group of `state`, and then for it.
  void TakeOfGroups(FsdpState& state, ModuleEvent of_group, ModuleEvent event);

  /// Gathers for a forward or backward that may not come.
  void GatherAhead(FsdpState& state, Ahead ahead);
  /// Gathers those that ranks may differ in using, all at once: nothing else
  /// puts their gathers in one order on every rank.
  void GatherUnused(bool in_backward);
  /// Issues the gathers of modules to come, nearest first.
  void PrefetchForward(FsdpState& running);
  void PrefetchBackward(FsdpState& running);
  void Prefetch(const std::vector<FsdpState*>& order, const FsdpState& running,
                int depth);
  void ReduceModules();
  void EndReductions();

  std::shared_ptr<CommContext> comm_;
  TreeIteration iteration_;
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
