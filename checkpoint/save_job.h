// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
#define CROSSHATCH_CHECKPOINT_SAVE_JOB_H_

/// \file
/// One save of a checkpoint, as one rank sees it, in the steps that saving at
/// once (checkpoint.h) and saving beside training (async_save.h) share:
///
/// 1. Prepare: ranks agree on the state and its plan, and the first rank makes
///    the directory beside the place (new_directory.h).
/// 2. BeginFile, Write, EndFile: every rank writes and hashes its cells. The
///    first rank writes the index before, as yet without hashes, so that from
///    the moment on that all files are complete the directory can be loaded.
/// 3. Commit: the first rank completes the index and renames the directory.
///
/// Step 1 is of the rank's thread; the others may be of any, and communicate
/// through their arguments alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

/// What the first copy of elements that the host cannot address takes of its
/// memory at a time.
inline constexpr int64_t kMostBytesOfAPiece = int64_t{16} << 20;

class SaveJob {
 public:
  /// Called by all ranks, and not on a dry run. What was issued before is done
  /// when it returns.
  /// \param state of this rank, or why it has none
  /// \param files outlives the job
  /// \param beside_if_refused where `dir` is refused the job goes on beside it,
  ///     and Commit fails, saying so
  /// \param union_of_ranks as SaveCheckpointOptions
  /// \error on every rank alike; then nothing is left behind
  static absl::StatusOr<std::unique_ptr<SaveJob>> Prepare(
      World& world, const absl::StatusOr<nn::StateDict>& state,
      const std::string& dir, bool overwrite, FileSystem& files,
      bool beside_if_refused = false, bool union_of_ranks = false);

  /// A part of a cell that this rank writes, at most kMostBytesOfAPiece.
  struct Piece {
    size_t cell = 0;  ///< Of the rank's in the plan.
    Box box;          ///< In the global tensor.
    Tensor data;      ///< Its elements, row-major; of one dim, contiguous.
  };
  /// All of them, in the order of the rank's file.
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// In how many rounds ranks write that have no more than kMostBytesOfAPiece
  /// of what the host cannot address in hand at once: of all ranks the most.
  /// Those of this rank in `round` are Round(round); none once it has written
  /// all.
  int rounds() const { return rounds_; }
  absl::Span<const Piece> Round(int round) const;
  const SavePlan& plan() const { return plan_; }
  /// Where the files are written.
  const std::string& directory() const { return directory_; }

  /// \name This rank's file
  /// Begin, Write of all pieces in their order, End; each piece once. Where one
  /// fails the others are not called.
  /// @{
  absl::Status BeginFile();
  /// \param data for each piece its elements
  absl::Status Write(absl::Span<const Piece> pieces,
                     absl::Span<const void* const> data);
  /// \returns what Commit needs of this rank: the hashes of its cells
  absl::StatusOr<std::string> EndFile();
  /// Of elements, that Write has written.
  int64_t bytes_written() const;
  /// @}

  /// First rank: completes the checkpoint. Call once.
  /// \param hashes of each rank, what EndFile returned
  /// \error says where the data lie
  absl::Status Commit(absl::Span<const std::string> hashes);

  /// \name Reports
  /// How ranks tell the first one of their files where they cannot meet: by a
  /// file each in the directory, which Commit removes.
  /// @{

  /// Other ranks: leaves `outcome`, of EndFile or of what failed before.
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

  /// Removes what this rank was writing and, on the first rank, all that was
  /// written. Call there when every rank has ended.
  void GiveUp() {
    writer_.reset();
    target_.reset();
  }

 private:
  SaveJob(const World& world, SavePlan plan, FileSystem& files)
      : rank_(world.rank()),
        world_ranks_(world.AllRanks()),
        plan_(std::move(plan)),
        files_(files) {}

  absl::Status Open(const std::string& dir, bool overwrite,
                    bool beside_if_refused);
  void CutPieces(absl::Span<const Tensor> data);
  absl::Status WriteIndex();

  const int rank_;
  const std::vector<int> world_ranks_;  ///< By index.
  SavePlan plan_;
  FileSystem& files_;
  std::string directory_;
  std::vector<Piece> pieces_;
  /// Where in pieces_ each of this rank's rounds begins, and the last ends.
  std::vector<size_t> round_begins_;
  int rounds_ = 0;
  /// None for a rank that has nothing to write, and before BeginFile.
  std::unique_ptr<SafetensorsWriter> writer_;
  std::vector<uint64_t> hashes_;  ///< Of the rank's cells.
  /// First rank only.
  std::unique_ptr<NewDirectory> target_;
  /// First rank only: the others leave reports.
  bool has_reports_ = false;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
