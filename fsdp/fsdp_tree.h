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

#include "crosshatch/fsdp/comm_context.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/stream.h"

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

  /// Gathers from now on see what compute did to the shards (the optimizer's
  /// step).
  void BeginGathering();
  /// A module's forward begins, and has ended. The outermost of the tree,
  /// whichever module's it is, may follow an optimizer's step; where no
  /// backward comes, nothing that was gathered ahead of modules stays after it.
  /// \param of_root the order of modules begins anew.
  void BeginForward(bool of_root);
  void EndForward(bool backward_follows);
  /// A forward whose outputs are cast begins, and has ended. \returns whether
  /// it ran within no other such.
  void BeginCasting() { ++casting_forwards_; }
  bool EndCasting() { return --casting_forwards_ == 0; }
  /// Issues the gathers of modules to come, nearest first.
  void PrefetchForward(FsdpState& running);
  void PrefetchBackward(FsdpState& running);

  void RecordForward(FsdpState& state) { forward_order_.push_back(&state); }
  /// Arranges for the end of the backward that is running.
  void BeginBackward();

  /// \name The end of backward
  /// Off for all backwards of an iteration but the last: compute then does not
  /// wait for reductions, and the order of forward is kept.
  /// @{
  void set_is_last_backward(bool on) { is_last_backward_ = on; }
  bool is_last_backward() const { return is_last_backward_; }
  /// On: no backward reduces anything by itself; Reduce and Finish do.
  void set_manual_finalization(bool on) { manual_finalization_ = on; }
  bool manual_finalization() const { return manual_finalization_; }
  /// Reduces whatever is pending.
  void Reduce();
  /// Makes compute wait for all reductions, and ends the iteration.
  void Finish();
  /// @}

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
  /// Gathers those that ranks may differ in using, all at once: nothing else
  /// puts their gathers in one order on every rank.
  void GatherUnused(bool in_backward);
  void Prefetch(const std::vector<FsdpState*>& order, const FsdpState& running,
                int depth);
  void EndBackward();
  void EndReductions();

  std::shared_ptr<CommContext> comm_;
  int forward_prefetch_ = 0;
  int backward_prefetch_ = 0;
  std::optional<int64_t> prefetch_bytes_;
  bool is_last_backward_ = true;
  bool manual_finalization_ = false;
  std::optional<Event> post_optimizer_;
  std::vector<Seen> seen_;
  /// All states, the root first, in the order of the modules.
  std::vector<FsdpState*> states_;
  /// The order in which forward is expected to run: that of the modules at
  /// first, then that of the last iteration.
  std::vector<FsdpState*> expected_order_;
  size_t position_ = 0;
  int forwards_ = 0;          ///< That run, within each other.
  int casting_forwards_ = 0;  ///< Those among them whose outputs are cast.
  /// The order in which this iteration's forwards ended; backward takes them
  /// from the end.
  std::vector<FsdpState*> forward_order_;
  /// The order in which they began, but for those that ranks may differ in.
  std::vector<FsdpState*> begin_order_;
  bool in_backward_ = false;
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_FSDP_TREE_H_
