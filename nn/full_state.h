// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_FULL_STATE_H_
#define CROSSHATCH_NN_FULL_STATE_H_

/// \file
/// States with full tensors, in addition to those of shards: to inspect a run,
/// to export to another format, and to import from it. One tensor at a time, so
/// no rank holds two.

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

enum class StateHolder : uint8_t {
  kFirstRank,  ///< Of the world; the others hold no full tensor.
  kEveryRank,
};

/// Receives an entry. Its tensor is plain and freed after the call, unless the
/// visitor keeps it.
using StateVisitor = absl::FunctionRef<absl::Status(const std::string& name,
                                                    const StateValue& value)>;

/// Calls `visit` with each entry of `state`, in the order of the names, on the
/// ranks of `holder`. Tensors are new, on the rank's device and in the current
/// memory class. All ranks of `world` call it with their shards of one state.
/// \error the same on every rank: the first error of a visitor, after which it
///     is not called again; as CheckCopies; a failed collective.
absl::Status VisitFullState(World& world, const StateDict& state,
                            StateHolder holder, StateVisitor visit);

/// Checks that each name stands for one tensor. A DTensor on a mesh of all
/// ranks is one tensor, with replicas along axes that replicate it. A plain
/// tensor, and a DTensor on a mesh of some ranks, such as a slice, exist once
/// per rank or slice and are taken to be replicas, too. Replicas are compared
/// by hashes. So experts that only some ranks have need their own names, or a
/// mesh on which they are shards. All ranks of `comm` call it; it waits for the
/// rank's stream if there is something to compare.
/// \param what the owner of the names, for the message: "the full state"
/// \error the same on every rank: kInvalidArgument naming an entry that one
///     rank has and another lacks, or whose shards on two ranks differ in value
///     or overlap partly; a failed collective.
absl::Status CheckCopies(Communicator& comm, const std::string& what,
                         const StateDict& state);

struct RestoreFullOptions {
  /// kFirstRank: `saved` is read on the first rank of the world only, and
  /// broadcast from there.
  StateHolder from = StateHolder::kEveryRank;
  /// Convert tensors of another dtype; otherwise they are an error.
  bool convert_dtypes = false;
};

/// Restores `target` from `saved`, whose tensors are full and plain. All ranks
/// of `world` call it.
/// \error the same on every rank, naming the entry, before the first tensor is
///     filled: as Stateful; kInvalidArgument for another shape, kind or dtype,
///     for a distributed tensor and, with kFirstRank, for one on a mesh without
///     the first rank of the world; a failed collective.
absl::Status RestoreFullState(World& world, Stateful& target,
                              const StateDict& saved,
                              const RestoreFullOptions& options = {});

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_FULL_STATE_H_
