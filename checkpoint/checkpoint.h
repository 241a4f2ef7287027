// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_CHECKPOINT_H_
#define CROSSHATCH_CHECKPOINT_CHECKPOINT_H_

/// \file
/// Sharded checkpoints: what a run keeps (nn/state_dict.h), written by the
/// ranks of one mesh and read by those of any other, of any size and any axes.
///
///     CH_RETURN_IF_ERROR(SaveCheckpoint(world, run, "runs/a/step-000100"));
///     ...
///     CH_RETURN_IF_ERROR(LoadCheckpoint(world, run, "runs/a/step-000100"));
///
/// A checkpoint is a directory with an index (checkpoint.json) and a
/// safetensors file of each rank that had something to write. No rank ever
/// holds more of a tensor than its own part of it; of what several ranks hold
/// one writes; each reads the intervals that it needs. docs/checkpoints.md has
/// the format and what is promised of it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::checkpoint {

struct SaveStats {
  /// Of elements, that this rank wrote; on a dry run, that it would.
  int64_t bytes_written = 0;
  /// Files of elements of this rank's: one, or none.
  int files = 0;
};

struct SaveCheckpointOptions {
  /// Replace the checkpoint in a directory that is not empty; all else there
  /// stays. See new_directory.h for what goes and when.
  bool overwrite = false;
  /// Where `dir` is refused, write beside it all the same, and let the error
  /// say where: for a state that nothing else holds.
  bool beside_if_refused = false;
  /// Save the union of the ranks' states, whose names may differ: each pipeline
  /// stage gives its own parameters, under names that no other stage has. Ranks
  /// with the same names have one state, as without this; small values that
  /// several have are equal. A stage reads its part with
  /// LoadCheckpointOptions::partial, or by a Stateful that allows unexpected
  /// names, on the ranks of its own world (World::Subset) and in any other cut
  /// into stages.
  bool union_of_ranks = false;
  /// By which this rank writes. Outlives the save.
  FileSystem* file_system = &FileSystem::Real();
  /// Filled if not null, once the save has come to its end.
  SaveStats* stats = nullptr;
};

/// Writes `state` to the directory `dir`, which appears complete or not at all,
/// on the disk when this returns. Called by all ranks of `world`, each with its
/// own part of the same state. The ranks' directories are one: where they run
/// on several machines, these share a file system. The time that the disk takes
/// counts against no timeout of collectives. Of elements that the host cannot
/// address it copies at most 16 MiB at a time. On a dry run all is planned
/// (PlanOf) and nothing written: `options.stats` are what it would be.
/// \error on every rank alike, with all ranks' reasons: kInvalidArgument for a
///     partial tensor; kFailedPrecondition for states that differ between
///     ranks; kAlreadyExists for a directory that is not empty, or that
///     another save wrote meanwhile; what the system said; a failed collective.
///     Data that are complete are never deleted: an error after they were
///     written says where they lie.
absl::Status SaveCheckpoint(World& world, const nn::StateDict& state,
                            const std::string& dir,
                            const SaveCheckpointOptions& options = {});
/// As above of what `stateful` keeps.
/// \error also what its State says
absl::Status SaveCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const SaveCheckpointOptions& options = {});

/// What SaveCheckpoint would write, and by which rank. Communicates nothing and
/// touches no elements, so it serves a dry run. Of a tensor that each slice of
/// a mesh has it knows this rank's slice alone.
/// \error kInvalidArgument as SaveCheckpoint
absl::StatusOr<SavePlan> PlanOf(const World& world, const nn::StateDict& state);

/// Whether SaveCheckpoint would refuse `dir` because of what is there, or the
/// system would not let a directory take its place (CheckSaveDirectory).
absl::Status CheckCheckpointDirectory(
    const std::string& dir, const SaveCheckpointOptions& options = {});

struct LoadStats {
  /// Of elements of the files, counted where they are copied from: the sum,
  /// over the tensors, of what this rank holds of each, in the dtype that they
  /// are stored in. On a dry run, that it would read.
  int64_t bytes_read = 0;
  /// Counted where they are hashed: the same bytes. 0 on a dry run.
  int64_t bytes_hashed = 0;
  /// Files that this rank opened, beside the index.
  int files_opened = 0;
  /// All names, in order, of entries of the state that the checkpoint lacks,
  /// and of the checkpoint that the state lacks, whether that is allowed or an
  /// error. A Stateful says which entries are due: of those the checkpoint
  /// lacks none, and RestoreOptions::differences has what the Stateful leaves
  /// out.
  std::vector<std::string> missing = {};
  std::vector<std::string> unexpected = {};
};

struct LoadCheckpointOptions {
  /// Compare the content of each tensor that is read with the hash that it was
  /// saved with (content_hash.h). Nothing is read for that beyond what is
  /// loaded: ranks add up what they read.
  bool verify = true;
  /// Convert between floating-point types where the state's differs from what
  /// was stored; without it a difference is an error.
  bool convert_dtype = false;
  /// Of a StateDict: entries that the checkpoint lacks stay as they are, and
  /// what the checkpoint has beyond them is left alone.
  bool partial = false;
  /// Filled if not null, as far as the load came.
  LoadStats* stats = nullptr;
};

/// Reads the checkpoint in `dir` into `state`: into the memory of its tensors,
/// and in the place of its small values. Called by all ranks of `world`; the
/// rest as SaveCheckpoint: the time that the disk takes counts against no
/// timeout, as far as the system's cache holds what was read of 256 MiB of
/// global tensors, or of one that is larger, until it is copied. Shapes, dtypes
/// and the completeness of what is there are checked on all ranks before a byte
/// of a tensor is read. On a dry run all is checked and nothing read.
/// \error on every rank alike, with all ranks' reasons: kNotFound for a
///     directory that is no checkpoint, and for entries that it lacks;
///     kInvalidArgument for entries that `state` lacks, shapes and types that
///     differ, and tensors of `state` that are partial; kDataLoss for files
///     that are damaged or missing; kFailedPrecondition for states that differ
///     between ranks, and a checkpoint without hashes where verifying was asked
///     for. With kDataLoss for wrong content some tensors may have been filled.
absl::Status LoadCheckpoint(World& world, nn::StateDict& state,
                            const std::string& dir,
                            const LoadCheckpointOptions& options = {});
/// Reads it into `stateful`, by its StateToFill and Restore; `options.partial`
/// does not count.
/// \error also what these say
absl::Status LoadCheckpoint(World& world, nn::Stateful& stateful,
                            const std::string& dir,
                            const LoadCheckpointOptions& options = {});

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_CHECKPOINT_H_
