// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
#define CROSSHATCH_CHECKPOINT_SAVE_JOB_H_

/// \file
/// One save of a checkpoint, as one rank sees it, in the steps that saving at
/// once (checkpoint.h) and saving beside training (async_save.h) share:
///
/// 1. Prepare: ranks agree on the state and its plan, and the first rank makes
///    the directory beside the place (new_directory.h).
/// 2. WriteFile: every rank writes and hashes its cells. The first rank writes
///    the index before, as yet without hashes, so that from the moment on that
///    all files are complete the directory can be loaded.
/// 3. Commit: the first rank completes the index and renames the directory.
///
/// Step 1 is of the rank's thread; the others may be of any, and communicate
/// through their arguments alone.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

class SaveJob {
 public:
  /// Called by all ranks. What was issued before is done when it returns.
  /// \param state of this rank, or why it has none
  /// \param files outlives the job
  /// \error on every rank alike; then nothing is left behind
  static absl::StatusOr<std::unique_ptr<SaveJob>> Prepare(
      World& world, const absl::StatusOr<nn::StateDict>& state,
      const std::string& dir, bool overwrite, FileSystem& files);

  /// What this rank writes: for each cell of the plan its local tensor, dense.
  const std::vector<Tensor>& cells() const { return cells_; }
  const SavePlan& plan() const { return plan_; }
  /// Where the files are written.
  const std::string& directory() const { return directory_; }

  /// Writes this rank's file. Call once.
  /// \param data for each of cells() its elements, row-major
  /// \returns what Commit needs of this rank: the hashes of its cells
  absl::StatusOr<std::string> WriteFile(absl::Span<const void* const> data);

  /// First rank: completes the checkpoint. Call once.
  /// \param hashes of each rank, what WriteFile returned
  /// \error says where the data lie
  absl::Status Commit(absl::Span<const std::string> hashes);

  /// \name Reports
  /// How ranks tell the first one of their WriteFile where they cannot meet: by
  /// a file each in the directory, which Commit removes.
  /// @{

  /// Other ranks: leaves `outcome`, of WriteFile.
  absl::Status WriteReport(const absl::StatusOr<std::string>& outcome);
  /// First rank: the reports of all ranks, `own` for its own, as Commit takes
  /// them.
  /// \param give_up is asked many times a second; a status that is not OK ends
  ///     the wait
  /// \error all ranks' errors in one; what give_up said, with the ranks that
  /// did
  ///     not report
  absl::StatusOr<std::vector<std::string>> AwaitReports(
      const absl::StatusOr<std::string>& own,
      absl::FunctionRef<absl::Status()> give_up);
  /// @}

  /// First rank: removes what was written. Call after every rank's WriteFile.
  void GiveUp() { target_.reset(); }

 private:
  SaveJob(int rank, SavePlan plan, FileSystem& files)
      : rank_(rank), plan_(std::move(plan)), files_(files) {}

  absl::Status Open(const std::string& dir, bool overwrite);
  absl::Status WriteIndex();

  const int rank_;
  SavePlan plan_;
  FileSystem& files_;
  std::string directory_;
  std::vector<Tensor> cells_;
  /// First rank only.
  std::unique_ptr<NewDirectory> target_;
  /// First rank only: the others leave reports.
  bool has_reports_ = false;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
