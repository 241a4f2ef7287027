// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_CHECKPOINT_H_
#define CROSSHATCH_CHECKPOINT_CHECKPOINT_H_

/// \file
/// Sharded checkpoints: the state of a run (nn/state_dict.h), written by the
/// ranks of one mesh and read by the ranks of any other mesh of any size.
///
///     CH_RETURN_IF_ERROR(SaveCheckpoint(world, run, "runs/a/step-000100"));
///     ...
///     CH_RETURN_IF_ERROR(LoadCheckpoint(world, run, "runs/a/step-000100"));
///
/// A checkpoint is a directory with an index (checkpoint.json) and one
/// safetensors file per rank that writes elements. No rank ever holds more of a
/// tensor than its own shard. One rank writes each replicated shard, and each
/// rank reads the intervals that it needs. docs/checkpoints.md describes the
/// format and its guarantees.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::checkpoint {

/// What a rank wrote in a save.
struct SaveStats {
  /// Bytes of elements that this rank wrote; in a dry run, that it would write.
  int64_t bytes_written = 0;
  /// Number of data files of this rank: 1 or 0.
  int files = 0;
};

/// Options of SaveCheckpoint.
struct SaveCheckpointOptions {
  /// Whether to replace the checkpoint in a directory that is not empty. Other
  /// files in it stay. new_directory.h states which files are deleted and when.
  bool overwrite = false;
  /// Whether to write to a directory next to `dir` if `dir` is refused; the
  /// error then names that directory. For a state that exists nowhere else.
  bool use_fallback_directory = false;
  /// Whether to save the union of the ranks' states, whose names may differ:
  /// each pipeline stage passes its own parameters, with names that no other
  /// stage has. Ranks with the same names share one state, as usual. Small
  /// values of several stages must be equal. To read its part, a stage uses
  /// LoadCheckpointOptions::partial, or a Stateful that allows unexpected
  /// names, on the ranks of its own world (World::Subset). The division into
  /// stages may differ.
  bool union_of_ranks = false;
  /// File system calls of this rank. Must outlive the save.
  FileSystem* file_system = &FileSystem::Real();
  /// If not null, set when the save has ended.
  SaveStats* stats = nullptr;
};

/// Writes `state` to the directory `dir`. When this returns, the directory is
/// complete and flushed to disk; at any time it is complete or absent.
///
/// All ranks of `world` must call it, each with its shards of the same state.
/// All ranks must see the same directory, on a shared file system if they are
/// on several machines. Disk time does not count towards timeouts of
/// collectives. Elements that the host cannot address are copied in pieces of
/// at most 16 MiB. In a dry run, plans the save (PlanOf), writes nothing and
/// sets `options.stats` to what a save would write.
/// \error The same on every rank, with the reasons of all ranks:
///     kInvalidArgument for a Partial tensor; kFailedPrecondition if ranks'
///     states differ; kAlreadyExists if the directory is not empty or another
///     save wrote it meanwhile; errors of the system or of a collective.
///     Complete data are never deleted: an error after they were written
///     names their directory.
absl::Status SaveCheckpoint(World& world, const nn::StateDict& state,
                            const std::string& dir,
                            const SaveCheckpointOptions& options = {});
/// Saves the state of `stateful`.
/// \error also errors of Stateful::State.
absl::Status SaveCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const SaveCheckpointOptions& options = {});

/// Returns what SaveCheckpoint would write, by rank. Does not communicate or
/// read elements, so it works in a dry run. If each slice of a mesh has a
/// tensor of its own, the plan has this rank's slice only.
/// \error kInvalidArgument as SaveCheckpoint.
absl::StatusOr<SavePlan> PlanOf(const World& world, const nn::StateDict& state);

/// What a rank read in a load.
struct LoadStats {
  /// Bytes of elements that this rank copied from files: for each tensor its
  /// shard's size, in the stored dtype. In a dry run, the bytes that it would
  /// read.
  int64_t bytes_read = 0;
  /// Bytes that this rank hashed: the same bytes. 0 in a dry run.
  int64_t bytes_hashed = 0;
  /// Files that this rank opened, without the index.
  int files_opened = 0;
  /// Sorted names of entries that the checkpoint lacks (missing) or the state
  /// lacks (unexpected), whether or not that is an error. When loading a
  /// Stateful, missing is empty, because the Stateful chooses the entries;
  /// RestoreOptions::differences lists the entries that it omits.
  std::vector<std::string> missing = {};
  std::vector<std::string> unexpected = {};
};

/// Options of LoadCheckpoint.
struct LoadCheckpointOptions {
  /// Whether to compare the content of each tensor with its saved hash
  /// (content_hash.h). This reads no additional data: ranks add up the hashes
  /// of what they read.
  bool verify = true;
  /// Whether to convert between floating-point dtypes. If false, a dtype that
  /// differs from the stored one is an error.
  bool convert_dtype = false;
  /// For a StateDict: whether entries that the checkpoint lacks stay unchanged
  /// and entries that the state lacks are ignored.
  bool partial = false;
  /// If not null, set on return, also after an error.
  LoadStats* stats = nullptr;
};

/// Reads the checkpoint in `dir` into the tensors and small values of `state`.
/// All ranks of `world` must call it and see the same directory.
///
/// Before a byte of a tensor is read, all ranks check shapes, dtypes and
/// completeness. Disk time does not count towards timeouts of collectives,
/// provided the system's cache holds the last 256 MiB of global tensors read
/// (or a larger tensor) until they are copied. In a dry run, checks everything
/// and reads no elements.
/// \error The same on every rank, with the reasons of all ranks: kNotFound if
///     `dir` is not a checkpoint or lacks an entry; kInvalidArgument if `state`
///     lacks an entry, shapes or dtypes differ, or a tensor of `state` is
///     Partial; kDataLoss if files are damaged or missing; kFailedPrecondition
///     if ranks' states differ, or if `verify` is set and the checkpoint has no
///     hashes. After kDataLoss for wrong content, some tensors may have been
///     overwritten.
absl::Status LoadCheckpoint(World& world, nn::StateDict& state,
                            const std::string& dir,
                            const LoadCheckpointOptions& options = {});
/// Reads the checkpoint into `stateful` by its StateToFill and Restore. Ignores
/// `options.partial`.
/// \error also errors of these methods.
absl::Status LoadCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const LoadCheckpointOptions& options = {});

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_CHECKPOINT_H_
