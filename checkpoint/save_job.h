// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
#define CROSSHATCH_CHECKPOINT_SAVE_JOB_H_

/// \file
/// One save of a checkpoint, as one rank sees it, in the steps that saving at
/// once (checkpoint.h) and saving beside training (async_save.h) share:
///
/// 1. Prepare: ranks agree on the state and its plan; the first rank makes the
///    directory beside the place (new_directory.h) and writes the index into
///    it, as yet without hashes, so that from the moment on that the last file
///    is complete the directory can be loaded.
/// 2. WriteFile: every rank writes and hashes its cells.
/// 3. Commit: the first rank completes the index and renames the directory.
///
/// Step 1 is of the rank's thread; the others may be of any, and communicate
/// through their arguments alone.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/described_state.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

class SaveJob {
 public:
  /// Called by all ranks of `comm`, which are all of the world.
  /// \param described of this rank, or why it has no state
  /// \param files outlives the job
  /// \error on every rank alike; then nothing is left behind
  static absl::StatusOr<std::unique_ptr<SaveJob>> Prepare(
      Communicator& comm, const absl::StatusOr<DescribedState>& described,
      const std::string& dir, bool overwrite, FileSystem& files);

  /// What this rank writes: for each cell of the plan its local tensor, dense.
  const std::vector<Tensor>& cells() const { return cells_; }
  const SavePlan& plan() const { return plan_; }
  /// Where the files are written.
  const std::string& directory() const { return directory_; }

  /// Writes this rank's file.
  /// \param data for each of cells() its elements, row-major
  /// \returns what Commit needs of this rank: the hashes of its cells
  absl::StatusOr<std::string> WriteFile(absl::Span<const void* const> data);

  /// First rank: completes the checkpoint. Call once.
  /// \param hashes of each rank, what WriteFile returned
  absl::Status Commit(absl::Span<const std::string> hashes);

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
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
