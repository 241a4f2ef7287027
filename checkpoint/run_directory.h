// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_
#define CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_

/// \file
/// The directory of a run, with a checkpoint for each step that was kept:
///
///     runs/a/step-000100/
///     runs/a/step-000200/
///
/// A checkpoint's directory has its name from the moment on that it is
/// complete, and no longer than that: one that is removed loses its name before
/// its first file. So the latest one is that with the greatest step, and there
/// is no pointer to it that could be wrong.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "crosshatch/checkpoint/async_save.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::checkpoint {

/// "<root>/step-000100".
std::string StepDirectory(const std::string& root, int64_t step);

/// The steps of the checkpoints in `root`, ascending; none where there is no
/// such directory. No rank is needed.
absl::StatusOr<std::vector<int64_t>> StepsIn(
    const std::string& root, FileSystem& files = FileSystem::Real());
/// The last of them.
absl::StatusOr<std::optional<int64_t>> LatestIn(
    const std::string& root, FileSystem& files = FileSystem::Real());

/// The directories in `root` that saves of steps have left, or are writing now:
/// what a killed one was writing, or was replacing. None where there is no such
/// directory. No rank is needed.
absl::StatusOr<std::vector<std::string>> UnfinishedSteps(
    const std::string& root, FileSystem& files = FileSystem::Real());

/// Whether checkpoints could be written to `root`, those of all steps after the
/// last that it holds: lets a program find out before its run begins. No rank
/// is needed.
/// \error says what stands in the way, in the place of a step for instance
absl::Status CheckRunDirectory(const std::string& root,
                               FileSystem& files = FileSystem::Real());

/// Removes the checkpoints of those steps of `own` that are before `newest`,
/// but for the last `keep` - 1 of them; none for a `keep` of 0. What another
/// run has written to `root` stays. Removes by name only the files of
/// checkpoints; a link, and a directory that holds anything else, is left as it
/// is. What an earlier call, killed, left half removed is removed first.
/// \pre that of `newest` is complete
/// \error all that could not be removed; the rest is
absl::Status RemoveOldSteps(const std::string& root, int keep, int64_t newest,
                            const std::set<int64_t>& own,
                            FileSystem& files = FileSystem::Real());

/// Removes what killed saves and removals of steps have left in `root`
/// (UnfinishedSteps). A directory stays if a save is writing to it, or if the
/// file system cannot show that; if all files of a checkpoint are there, which
/// may be the only copy of a run, or if that cannot be told; and if it holds
/// anything else. What lies outside `root` stays. No rank is needed.
/// \param report gets a line for each directory
/// \error all that could not be removed; the rest is
absl::Status CleanRunDirectory(const std::string& root, std::string& report,
                               FileSystem& files = FileSystem::Real());

/// Renames the checkpoints of the steps after `step` to "step-N.aside", so that
/// a run which is taken up again at `step` has their names to itself. No rank
/// is needed.
/// \error kFailedPrecondition naming what was set aside before, where later
///     steps are there again: they may be of the run that was taken up
absl::Status SetAsideLaterSteps(const std::string& root, int64_t step,
                                FileSystem& files = FileSystem::Real());

struct RunCheckpointsOptions {
  /// The number of checkpoints that stay; 0: all.
  int keep = 0;
  /// Save returns once it has planned; what this rank writes is copied and
  /// written beside training (async_save.h).
  bool async = false;
  /// By which this rank writes. Outlives this.
  FileSystem* file_system = &FileSystem::Real();
};

/// Saves and loads the checkpoints of a run. All ranks make one, and call the
/// same in the same order.
///
/// A run's own are those that it has saved and, once it has loaded one, that
/// one and those before it. No other is replaced or removed, so that two runs
/// that were given one directory cost each other nothing.
///
/// A dry run reads what the directory really holds, and changes none of it:
/// Latest gives the last step there, Load checks that checkpoint and reads no
/// elements, Save plans. \threadsafety the rank's thread only.
class RunCheckpoints {
 public:
  /// \param world outlives this
  RunCheckpoints(World& world, std::string root,
                 RunCheckpointsOptions options = {});

  /// The last step that there is a checkpoint of, the same on every rank. Of a
  /// run that was taken up again further back that is one of the run given up,
  /// until the new one has come as far (SetAsideLaterSteps).
  absl::StatusOr<std::optional<int64_t>> Latest();
  /// Does what LoadCheckpoint does with the checkpoint of `step`.
  /// \error for one that is damaged also names the last whole one before it,
  ///     for which the first rank reads those before
  absl::Status Load(nn::Stateful& stateful, int64_t step,
                    const LoadCheckpointOptions& options = {});
  /// Does what SetAsideLaterSteps does, on the first rank; nothing on a dry
  /// run. \error as SetAsideLaterSteps
  absl::Status SetAsideAfter(int64_t step);
  /// As SaveCheckpoint, or AsyncCheckpointer::Save; an own one of that step is
  /// replaced. Then removes old ones. Where something else has the step's name
  /// the checkpoint is written beside it. With `async` ops that write wait for
  /// the copy by themselves; a program that writes to memory of the state by an
  /// address (Tensor::data) calls WaitUntilCopied before.
  /// On a dry run nothing is written or removed, so that Latest stays.
  /// \error where it lies beside, what is there and where it lies; with `async`
  ///     also that of the save before, and then nothing was saved
  absl::Status Save(nn::Stateful& stateful, int64_t step);
  /// As AsyncCheckpointer::WaitUntilCopied; nothing is left to copy without
  /// `async`.
  void WaitUntilCopied() { saver_.WaitUntilCopied(); }
  /// As AsyncCheckpointer::Poll; OK without `async`.
  absl::Status Poll() { return saver_.Poll(); }
  /// Waits until what was saved is in place.
  absl::Status Wait();

  /// For how long the last Save has kept the rank's thread, so far:
  /// AsyncCheckpointer::held_up, or without `async` all of it.
  absl::Duration held_up() const {
    return options_.async ? saver_.held_up() : held_up_;
  }

 private:
  World& world_;
  const std::string root_;
  const RunCheckpointsOptions options_;
  /// The run's own steps, of the first rank: those that it went on from, and
  /// those that it saved, which are the writing thread's while a save goes on.
  std::set<int64_t> resumed_;
  std::set<int64_t> saved_;
  AsyncCheckpointer saver_;
  absl::Duration held_up_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_
