// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_
#define CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_

/// \file
/// RunCheckpoints: the directory of a run, with one checkpoint per kept step:
///
///     runs/a/step-000100/
///     runs/a/step-000200/
///
/// A checkpoint's directory has its name exactly while it is complete: a
/// removal renames it before it deletes the first file. So the latest
/// checkpoint is the one with the highest step; there is no pointer to it that
/// could be wrong.

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
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::checkpoint {

/// Returns e.g. "<root>/step-000100".
std::string StepDirectory(const std::string& root, int64_t step);

/// Returns the steps of the checkpoints in `root`, ascending; empty if `root`
/// does not exist. Needs no ranks.
absl::StatusOr<std::vector<int64_t>> StepsIn(
    const std::string& root, FileSystem& files = FileSystem::Real());
/// Returns the last step in `root`.
absl::StatusOr<std::optional<int64_t>> LatestIn(
    const std::string& root, FileSystem& files = FileSystem::Real());

/// Returns the directories in `root` that running or killed saves of steps were
/// writing or replacing; empty if `root` does not exist. Needs no ranks.
absl::StatusOr<std::vector<std::string>> UnfinishedSteps(
    const std::string& root, FileSystem& files = FileSystem::Real());

/// Checks that checkpoints can be written to `root`, for all steps after its
/// last one, so that a program finds out before its run begins. Needs no ranks.
/// \error names the obstacle, e.g. a file in the place of a step.
absl::Status CheckRunDirectory(const std::string& root,
                               FileSystem& files = FileSystem::Real());

/// Removes checkpoints of the steps in `own` that are before `newest`, except
/// the last `keep` - 1 of them. For `keep` = 0 removes none. Checkpoints of
/// other runs stay. Removes only files of checkpoints, by name. Links, and
/// directories that contain anything else, stay. First completes removals that
/// were interrupted.
/// \pre the checkpoint of `newest` is complete.
/// \error lists everything that could not be removed; all else is.
absl::Status RemoveOldSteps(const std::string& root, int keep, int64_t newest,
                            const std::set<int64_t>& own,
                            FileSystem& files = FileSystem::Real());

/// Removes what interrupted saves and removals of steps left in `root`
/// (UnfinishedSteps). A directory stays if a save is writing to it, or the file
/// system cannot show that none is. It stays if it has all files of a
/// checkpoint, which may be the only copy of a run, or if that cannot be
/// determined. It stays if it contains anything else. Nothing outside of `root`
/// is removed. Needs no ranks.
/// \param report gets a line per directory.
/// \error kNotFound without `root`; kInvalidArgument if it contains no step;
///     lists everything that could not be removed; all else is.
absl::Status CleanRunDirectory(const std::string& root, std::string& report,
                               FileSystem& files = FileSystem::Real());

/// Renames the checkpoints of the steps after `step` to "step-N.aside", so that
/// a run which resumes at `step` can use their names. Needs no ranks.
/// \error kFailedPrecondition naming renamed checkpoints whose steps exist
///     again: those may belong to the resumed run.
absl::Status SetAsideLaterSteps(const std::string& root, int64_t step,
                                FileSystem& files = FileSystem::Real());

/// Options of RunCheckpoints.
struct RunCheckpointsOptions {
  /// Number of checkpoints to keep; 0: all.
  int keep = 0;
  /// Whether Save returns after planning, and a background thread copies and
  /// writes (async_save.h).
  bool async = false;
  /// File system calls of this rank. Must outlive this object.
  FileSystem* file_system = &FileSystem::Real();
};

/// Saves and loads the checkpoints of a run. All ranks create one and must make
/// the same calls in the same order.
///
/// A run's own checkpoints are those that it has saved and, after a load, the
/// loaded one and those before it. No others are replaced or removed, so that
/// two runs in one directory do not harm each other.
///
/// A dry run reads the real directory and does not change it: Latest returns
/// its last step, Load checks that checkpoint without reading elements, and
/// Save only plans.
/// \threadsafety The rank's thread only.
class RunCheckpoints {
 public:
  /// \param world must outlive this object.
  RunCheckpoints(World& world, std::string root,
                 RunCheckpointsOptions options = {});

  /// Returns the last step that has a checkpoint, the same on every rank. If a
  /// run resumed at an earlier step, that may be a step of the abandoned run
  /// until the new one has passed it (SetAsideLaterSteps).
  absl::StatusOr<std::optional<int64_t>> Latest();
  /// Loads the checkpoint of `step`, as LoadCheckpoint does.
  /// \error If the checkpoint is damaged, the error names the last intact one
  ///     before it, which the first rank finds by reading them.
  absl::Status Load(nn::Stateful& stateful, int64_t step,
                    const LoadCheckpointOptions& options = {});
  /// Calls SetAsideLaterSteps on the first rank. Does nothing in a dry run.
  /// \error as SetAsideLaterSteps.
  absl::Status SetAsideAfter(int64_t step);
  /// Saves a checkpoint of `step` by SaveCheckpoint or, with `async`, by
  /// AsyncCheckpointer::Save, and then removes old checkpoints. Replaces the
  /// run's own checkpoint of that step. If something else has the step's name,
  /// writes the checkpoint next to it. In a dry run nothing is written or
  /// removed.
  ///
  /// With `async`, ops that write to the state wait for its copy. A program
  /// that writes to its memory by address (Tensor::data) must call
  /// WaitUntilCopied first.
  /// \error If the checkpoint was written next to its place, the error names
  ///     what is there and where the checkpoint is. With `async`, also the
  ///     error of the previous save, and then nothing is saved.
  absl::Status Save(nn::Stateful& stateful, int64_t step);
  /// As AsyncCheckpointer::WaitUntilCopied. Without `async` there is nothing to
  /// wait for.
  void WaitUntilCopied() { saver_.WaitUntilCopied(); }
  /// As AsyncCheckpointer::Poll; OK without `async`.
  absl::Status Poll() { return saver_.Poll(); }
  /// Waits until the last saved checkpoint is complete.
  absl::Status Wait();

  /// Returns how long the last Save has blocked the rank's thread so far:
  /// AsyncCheckpointer::blocked_duration or, without `async`, the whole save.
  absl::Duration blocked_duration() const {
    return options_.async ? saver_.blocked_duration() : blocked_duration_;
  }

 private:
  World& world_;
  const std::string root_;
  const RunCheckpointsOptions options_;
  /// First rank: the run's own steps, those that it resumed from and those that
  /// it saved. During a save the writing thread uses the latter.
  std::set<int64_t> resumed_;
  std::set<int64_t> saved_;
  AsyncCheckpointer saver_;
  absl::Duration blocked_duration_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_RUN_DIRECTORY_H_
