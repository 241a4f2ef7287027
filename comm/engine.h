// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_ENGINE_H_
#define CROSSHATCH_COMM_ENGINE_H_

/// \file
/// Engine: what stands behind the World of one rank.
/// docs/adding_an_engine.md goes through it.

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/comm/group_key.h"
#include "crosshatch/comm/transport.h"
#include "crosshatch/comm/world.h"

namespace crosshatch {

/// One rank's engine. Outlives its World. A transport that somebody still holds
/// may be destroyed after the engine and the rank's context, and then uses
/// neither.
/// \threadsafety the rank's thread only.
class Engine {
 public:
  virtual ~Engine() = default;

  /// "local", "mpi", "ucx", "nccl", "fake".
  virtual const std::string& name() const = 0;

  /// This rank's end of a group that it has not asked for before. All members
  /// come here, each when it gets there.
  /// \param member this rank's index in `key`, which is valid.
  /// \error what kept the group from being made.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Connect(
      const GroupKey& key, int member) = 0;

  /// See World::Divide. What an engine makes of it is its own business.
  virtual absl::Status Divide(
      const std::vector<int>& /*world_ranks*/,
      const std::vector<std::vector<int>>& /*groups*/,
      absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(std::string)>
      /*exchange*/) {
    return absl::OkStatus();
  }

  /// The job fails because this rank did, with `error` (not OK): all ranks are
  /// poisoned and all groups end. Only the first failure of a job counts.
  virtual void FailJob(const absl::Status& error) = 0;
};

/// What every engine refuses before it starts: a timeout that is not positive,
/// and a seed of the environment that is none.
absl::Status CheckRun(absl::Duration timeout);

/// What every engine does with one rank's function: runs it, drains the
/// streams, and fails the job if either ends with an error. An exception out of
/// `fn` is an error of this rank too, so that its peers are told.
/// \returns the first error.
absl::Status RunRank(World& world, absl::FunctionRef<absl::Status(World&)> fn);

}  // namespace crosshatch

#endif  // CROSSHATCH_COMM_ENGINE_H_
