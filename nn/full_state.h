// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_FULL_STATE_H_
#define CROSSHATCH_NN_FULL_STATE_H_

/// \file
/// States with whole tensors, beside those of shards: out of a run, to look at
/// or to write in another program's format, and back into one. One tensor at a
/// time: no rank holds two.

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

enum class StateHolder : uint8_t {
  kFirstRank,  ///< Of the world; the others hold no whole tensor.
  kEveryRank,
};

/// Takes an entry; its tensor is plain and goes after the call, unless the
/// visitor keeps it.
using StateVisitor = absl::FunctionRef<absl::Status(const std::string& name,
                                                    const StateValue& value)>;

/// Calls `visit` with each entry of `state`, in the order of the names, on the
/// ranks that `holder` says. Tensors are new ones of the rank's device and the
/// current memory class. Called by all ranks of `world`, each with its part of
/// the same state.
/// \error on every rank alike: the first error of a visitor, after which it is
///     not called again; as CheckCopies; a failed collective.
absl::Status VisitFullState(World& world, const StateDict& state,
                            StateHolder holder, StateVisitor visit);

/// Checks that one tensor stands for what ranks hold under a name. A DTensor on
/// a mesh of all ranks is one tensor, of which ranks along an axis that it is
/// replicated on hold copies. A plain tensor, and a DTensor on a mesh of some
/// of the ranks, such as a slice, are one on each rank or slice: these are
/// taken for copies, too. Copies are compared by hashes of what each rank
/// holds. Experts that ranks have for themselves need names of their own, or a
/// mesh that they are shards on. Called by all ranks of `comm`; waits for the
/// rank's stream where there is something to compare.
/// \param what whose names they are, for the message: "the full state"
/// \error on every rank alike: kInvalidArgument naming an entry that one rank
///     has and another lacks, or of which two ranks hold the same part with
///     other values, or parts that overlap and are not the same; a failed
///     collective.
absl::Status CheckCopies(Communicator& comm, const std::string& what,
                         const StateDict& state);

struct RestoreFullOptions {
  /// kFirstRank: `saved` is read on the first rank of the world alone, and sent
  /// from there.
  StateHolder from = StateHolder::kEveryRank;
  /// Tensors of another dtype are converted; else they are an error.
  bool convert_dtypes = false;
};

/// Restores `target` from `saved`, whose tensors are whole and plain. Called by
/// all ranks of `world`.
/// \error on every rank alike, naming the entry: as Stateful; kInvalidArgument
///     for another shape, kind or dtype, for a tensor that is distributed, and,
///     with kFirstRank, for one that goes to a mesh without the first rank of
///     the world; a failed collective. All is compared before the first tensor
///     is filled.
absl::Status RestoreFullState(World& world, Stateful& target,
                              const StateDict& saved,
                              const RestoreFullOptions& options = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_FULL_STATE_H_
