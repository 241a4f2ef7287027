// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_ITERATION_H_
#define CROSSHATCH_FSDP_ITERATION_H_

/// \file
/// When FSDP acts: the state machines of an iteration, of one sharded module
/// and of a tree of them. Values and pure functions: a state, what happens, and
/// the facts that decide give the next state and what is to be done, in order.
/// FsdpTree feeds them and does what they say, on itself or on the module's
/// FsdpState; nothing else decides when a group is gathered, freed or reduced.
/// docs/fsdp.md has the table.

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"

namespace crosshatch::fsdp {

/// What a module's groups were gathered for before it came.
enum class Ahead : uint8_t { kOfNothing, kOfForward, kOfBackward };

/// Where a sharded module is.
struct ModuleIteration {
  /// Forwards of it that run, within each other.
  int forwards = 0;
  /// Of a list of modules some have run, the last has not; of one module: it
  /// runs.
  bool in_forward = false;
  /// A backward has come to it, and is not over.
  bool in_backward = false;
  /// It computes in that backward: not all of its gradients are there.
  bool computes_backward = false;
  Ahead ahead = Ahead::kOfNothing;
  /// SummonFullParameters has its parameters: it must not run.
  bool summoned = false;

  friend bool operator==(const ModuleIteration&,
                         const ModuleIteration&) = default;
  /// E.g. "in forward, gathered ahead of backward"; "at rest".
  std::string ToString() const;
};

enum class ModuleEvent : uint8_t {
  kForwardBegins,
  kForwardEnds,
  kOutermostForwardEnds,  ///< Of the tree; no backward comes of it.
  kRecomputationBegins,   ///< Its forward runs again, for a backward.
  kBackwardBegins,        ///< The gradients of a forward's outputs are there.
  kGroupIsComplete,       ///< All gradients of a group are there.
  kGroupIsNeededAgain,    ///< Of what forward did a part is run again.
  kBackwardIsComplete,    ///< Of all groups, and of inputs that are watched.
  kGroupBackwardEnds,     ///< The backward is over: for each group,
  kBackwardEnds,          ///< and then for the module.
  kGroupIsFinalized,      ///< FinalizeBackward, for each group.
  kGatheredAheadOfForward,
  kGatheredAheadOfBackward,
  kReshardIsAskedFor,
  kGroupIsReset,  ///< The iteration is left: for each group,
  kIsReset,       ///< and then for the module.
  kSummonBegins,
  kSummonEnds,
};
inline constexpr int kNumModuleEvents = 18;

/// What decides besides the state: settings, and what an event brings.
struct ModuleFacts {
  bool is_root = false;
  /// \name Settings (settings.h)
  /// @{
  bool reshards_after_forward = true;
  bool reshards_after_backward = true;
  bool unshards_in_backward = true;
  /// Ranks may differ in using it: SetReduceUnusedParams.
  bool ranks_may_differ = false;
  bool is_last_backward = true;
  bool manual_finalization = false;
  /// @}
  /// kForwardEnds: outputs have gradients; the module is the last of its list.
  bool backward_follows = true;
  bool frees = true;
  /// kGroupIsComplete: none of the group's parameters is frozen.
  bool trains_all = true;
  /// kBackwardIsComplete: gradients for modules below may yet pass through
  /// frozen parameters of this one.
  bool passes_gradients = false;
  /// kGatheredAhead..: something is not gathered yet.
  bool gathers = true;
};

enum class ModuleAction : uint8_t {
  // For the tree to do.
  kBeginForwardInTree,
  kBeginForwardOfRootInTree,
  kEndForwardInTree,
  kBeginBackwardInTree,
  kRecordForward,
  kPrefetchForward,
  kPrefetchBackward,
  // For the module to do.
  kFollowTrainability,
  kUnshard,
  kWait,
  kReshard,
  kReshardAfterForward,
  kWatchInputs,
  // On the group that the event is of.
  kReduceGroup,
  kUnshardGroup,  ///< And waits for it.
  kReshardGroup,
  kEndGroup,
  kResetGroup,
  // In the trace.
  kBeginForwardSpan,
  kEndForwardSpan,
  kBeginBackwardSpan,
  kEndBackwardSpan,
};

const char* Name(ModuleEvent event);
const char* Name(ModuleAction action);

struct ModuleTransition {
  ModuleIteration next;
  absl::InlinedVector<ModuleAction, 8> actions;

  /// "in forward: unshard, wait".
  std::string ToString() const;
};

ModuleTransition Transition(const ModuleIteration& from, ModuleEvent event,
                            const ModuleFacts& facts);

/// Where a tree of sharded modules is.
struct TreeIteration {
  int forwards = 0;          ///< That run, within each other.
  int casting_forwards = 0;  ///< Those among them whose outputs are cast.
  bool in_backward = false;
  /// Ranks have been asked whether they hold the same buffers.
  bool has_compared_buffers = false;

  friend bool operator==(const TreeIteration&, const TreeIteration&) = default;
  std::string ToString() const;
};

enum class TreeEvent : uint8_t {
  kForwardBegins,
  kForwardEnds,
  kCastingForwardBegins,
  kCastingForwardEnds,
  kBackwardBegins,
  kBackwardEnds,
  kFinalizeIsAskedFor,
  kIsReset,
};
inline constexpr int kNumTreeEvents = 8;

struct TreeFacts {
  bool of_root = false;            ///< kForwardBegins: the order begins anew.
  bool compares_replicas = false;  ///< kForwardBegins: CompareReplicas is on.
  bool backward_follows = true;    ///< kForwardEnds.
  bool is_last_backward = true;
  bool manual_finalization = false;
};

enum class TreeAction : uint8_t {
  kFindRows,
  kForgetRows,
  kCompareBuffers,
  kCheckAllSharded,
  kBeginGathering,
  kGatherUnusedForForward,
  kGatherUnusedForBackward,
  kBeginOrder,
  kLeaveForward,
  kAwaitBackwardEnd,
  kEndModules,
  kReduceModules,
  kEndReductions,
  kFinish,
};

const char* Name(TreeEvent event);
const char* Name(TreeAction action);

struct TreeTransition {
  TreeIteration next;
  absl::InlinedVector<TreeAction, 4> actions;

  std::string ToString() const;
};

TreeTransition Transition(const TreeIteration& from, TreeEvent event,
                          const TreeFacts& facts);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_ITERATION_H_
