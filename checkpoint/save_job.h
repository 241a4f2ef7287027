// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
#define CROSSHATCH_CHECKPOINT_SAVE_JOB_H_

/// \file
/// SaveJob: one save of a checkpoint on one rank, in the steps that synchronous
/// (checkpoint.h) and asynchronous (async_save.h) saves share:
///
/// 1. Prepare: ranks agree on the state and its plan, and the first rank
///    creates the directory next to the target (new_directory.h).
/// 2. BeginFile, Write, EndFile: every rank writes and hashes its cells. The
///    first rank first writes the index, still without hashes, so that the
///    directory can be loaded as soon as all files are complete.
/// 3. Commit: the first rank completes the index and renames the directory.
///
/// Step 1 runs on the rank's thread. The others may run on any thread and
/// communicate through their arguments only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/checkpoint/weight_files.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::checkpoint {

/// Maximal number of bytes that a save copies at a time, of elements that the
/// host cannot address, or that it converts or transposes.
inline constexpr int64_t kMaxPieceBytes = int64_t{16} << 20;

/// Calls `take` with each part of at most kMaxPieceBytes of the cells that
/// `rank` writes, in their order.
/// \param data the local or distributed tensor of each tensor of the plan.
/// \param element_bytes returns the largest size of an element of a tensor, in
///     memory or as written.
/// \param take receives the index of the cell, the part's box in the global
///     tensor, and its elements, dense.
void CutCells(const SavePlan& plan, int rank, absl::Span<const Tensor> data,
              absl::FunctionRef<int64_t(const IndexedTensor&)> element_bytes,
              absl::FunctionRef<void(size_t, const Box&, Tensor)> take);

/// One save on one rank.
class SaveJob {
 public:
  /// Plans a save and creates its directory. All ranks must call it; not for
  /// dry runs. Waits for work that was issued before.
  /// \param state this rank's state, or its error.
  /// \param options `stats` is not used.
  /// \error the same on every rank; then no files are left behind.
  static absl::StatusOr<std::unique_ptr<SaveJob>> Prepare(
      World& world, const absl::StatusOr<nn::StateDict>& state,
      const std::string& dir, const SaveCheckpointOptions& options);

  /// A part of a cell that this rank writes, at most kMaxPieceBytes.
  struct Piece {
    size_t cell = 0;  ///< Index in the rank's cells of the plan.
    Box box;          ///< Relative to the global tensor.
    Tensor data;      ///< Its elements, dense.
  };
  /// Returns all pieces in the order of the rank's file.
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Returns the number of rounds, the same on all ranks. In a round, a rank
  /// copies at most kMaxPieceBytes of elements that the host cannot address.
  size_t rounds() const { return rounds_; }
  /// Returns this rank's pieces of `round`; none if it has written all.
  absl::Span<const Piece> Round(size_t round) const;
  const SavePlan& plan() const { return plan_; }
  const std::string& directory() const { return directory_; }

  /// \name This rank's file
  /// Call BeginFile, Write for each piece in order, and EndFile. If one fails,
  /// do not call the others.
  /// @{
  absl::Status BeginFile();
  /// \param data the elements of each piece.
  absl::Status Write(absl::Span<const Piece> pieces,
                     absl::Span<const void* const> data);
  /// \returns the hashes of this rank's cells, for Commit.
  absl::StatusOr<std::string> EndFile();
  /// Returns the bytes of elements written so far.
  int64_t bytes_written() const;
  /// @}

  /// First rank: completes the checkpoint. Call once.
  /// \param hashes the results of EndFile on all ranks.
  /// \error names the directory of the data.
  absl::Status Commit(absl::Span<const std::string> hashes);

  /// \name Reports
  /// With these, ranks report to the first rank without a collective: by one
  /// file each in the directory, which Commit removes.
  /// @{

  /// Other ranks: writes a report with `outcome`, the result of EndFile or an
  /// earlier error.
  absl::Status WriteReport(const absl::StatusOr<std::string>& outcome);
  /// First rank: waits for the reports of all ranks and returns the hashes for
  /// Commit.
  /// \param own the first rank's outcome.
  /// \param give_up called many times a second; the wait ends when it returns
  ///     an error.
  /// \error the errors of all ranks in one; or the error of `give_up`, with the
  ///     ranks that did not report.
  absl::StatusOr<std::vector<std::string>> AwaitReports(
      const absl::StatusOr<std::string>& own,
      absl::FunctionRef<absl::Status()> give_up);
  /// @}

  /// Removes this rank's incomplete file and, on the first rank, everything
  /// that was written. The first rank calls it when every rank has ended.
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

  absl::Status Open(const std::string& dir,
                    const SaveCheckpointOptions& options);
  void CutPieces(absl::Span<const Tensor> data);
  absl::Status WriteIndex();

  const int rank_;
  const std::vector<int> world_ranks_;  ///< By index.
  SavePlan plan_;
  FileSystem& files_;
  std::string directory_;
  std::vector<Piece> pieces_;
  /// Index in pieces_ where each round of this rank begins, and the end.
  std::vector<size_t> round_begins_;
  size_t rounds_ = 0;
  /// Null before BeginFile and on a rank without cells.
  std::unique_ptr<WeightFiles> writer_;
  std::vector<uint64_t> hashes_;  ///< By cell of the rank.
  /// First rank only.
  std::unique_ptr<NewDirectory> target_;
  /// First rank only: whether other ranks write reports.
  bool has_reports_ = false;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_SAVE_JOB_H_
