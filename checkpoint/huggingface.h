// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_
#define CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_

/// \file
/// Weights of Llama and its kin, and of any model whose names are described
/// (weight_names.h), from and to a Hugging Face directory: config.json
/// (hf_config.h) beside model.safetensors, or beside several files and
/// model.safetensors.index.json.
///
/// Parameters may be laid out in any way over any mesh. A file holds whole
/// tensors; a parameter "layers.0.mlp.up_proj.weight" is called
/// "model.layers.0.mlp.up_proj.weight" there, and "lm_head.weight" is called
/// so. A tied output projection is not stored.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// Reads all weights of `model`, its parameters and its persistent buffers,
/// converted to their dtype. Each rank reads just its own slices; nothing is
/// communicated. What has no memory yet is given some, so Materialize is not
/// needed before; buffers that are not persistent get their first values.
/// Reading is issued to the current stream, which is waited for. On a dry run
/// files are checked and not read.
/// \error before any weight changes: kFailedPrecondition naming a module whose
///     parameters cannot be overwritten now (nn/state_guard.h), as while they
///     are summoned; naming the tensor kNotFound for weights
///     that are missing; kInvalidArgument for tensors that the model lacks
///     (but for the head of a tied model that equals the embedding), and for
///     a shape or dtype that is not the parameter's; kDataLoss for a
///     file that is not valid; what the system said. While weights change,
///     kDataLoss for a file that becomes shorter, kDataLoss naming file and
///     tensor for a parameter that is not finite, and what the system says of a
///     disk that fails; they poison the rank (RankContext::Poison).
absl::Status LoadHuggingFace(nn::Llama& model, const std::string& dir);

/// As LoadHuggingFace, of any model, whose parameters are called in files as
/// `names` say.
/// \error also as MergeByName
absl::Status LoadWeights(nn::Module& model, const std::string& dir,
                         const WeightNames& names);

struct SaveOptions {
  /// Replace the model's files in a directory that is not empty; all else there
  /// stays. See new_directory.h for what goes and when.
  bool overwrite = false;
  /// Where `dir` is refused, because something took the place after
  /// CheckSaveDirectory for instance, write beside it all the same, and let the
  /// error say where: for weights that nothing else holds.
  bool beside_if_refused = false;
  /// What floating-point weights are written as; none: as the model has them.
  std::optional<DType> dtype = std::nullopt;
  /// Not 0: several files (and an index) of so many bytes of tensors each, or
  /// of one tensor that is larger.
  int64_t most_bytes_of_a_file = 0;
  /// By which this rank writes. Outlives the save.
  FileSystem* file_system = &FileSystem::Real();
};

/// Whether SaveHuggingFace would refuse `dir` because of what is there, or the
/// system would not let a directory take its place. Lets a program find out
/// before it trains; a directory made to try it is removed again.
/// \error says what stands in the way
absl::Status CheckSaveDirectory(const std::string& dir,
                                const SaveOptions& options = {});

/// Directories beside `dir` that saves to it, killed before they were done,
/// left there (or are writing now). They may hold the only copy of a model, and
/// no save removes them; a program can tell its user.
absl::StatusOr<std::vector<std::string>> UnfinishedSaves(
    const std::string& dir);

/// Writes config.json and model.safetensors, with parameters and persistent
/// buffers, into the directory `dir`, which appears complete or not at all.
/// Called by all ranks of `world`. Each writes the intervals of the files that
/// it has, of what several have one of them, chosen so that they write about
/// equally many bytes (save_plan.h): no rank holds more of a tensor than its
/// own part, and of that at most 16 MiB twice, where it is converted, stored
/// transposed or out of the host's reach. Where ranks run on several machines,
/// these share a file system. The time that the disk takes counts against no
/// timeout of collectives.
/// \error on every rank alike: kAlreadyExists for a directory that is not
///     empty, or that another save wrote meanwhile; what the system said; a
///     failed collective; kFailedPrecondition on a dry run, which has no
///     weights, and naming a module whose parameters cannot be told now
///     (nn/state_guard.h), as while they are summoned, and for ranks whose
///     models or options would put a weight in different places. Complete
///     weights are never deleted: an error after they were written says where
///     they lie.
absl::Status SaveHuggingFace(World& world, nn::Llama& model,
                             const std::string& dir,
                             const SaveOptions& options = {});

/// As SaveHuggingFace, of any model, whose parameters are called in files as
/// `names` say.
/// \param config the text of config.json
/// \error also as MergeByName
absl::Status SaveWeights(World& world, nn::Module& model,
                         const std::string& dir, const WeightNames& names,
                         const std::string& config,
                         const SaveOptions& options = {});

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_
