// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_
#define CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_

/// \file
/// Loads and saves weights in Hugging Face directories, for Llama-like models
/// and for any model with a table of names (weight_names.h). A directory has
/// config.json (hf_config.h) and either model.safetensors or several files with
/// model.safetensors.index.json.
///
/// Parameters may have any layout on any mesh; files hold whole tensors. A
/// parameter "layers.0.mlp.up_proj.weight" is stored as
/// "model.layers.0.mlp.up_proj.weight", and "lm_head.weight" keeps its name. A
/// tied output projection is not stored.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/weight_names.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// Reads all weights of `model`, its parameters and persistent buffers, and
/// converts them to their dtypes. Each rank reads its own slices only; nothing
/// is communicated. Weights without memory are allocated, so Materialize is not
/// needed first; non-persistent buffers get their initial values. Issues the
/// reads to the current stream and waits for it. In a dry run, checks the files
/// and does not read them.
/// \error Before any weight changes: kFailedPrecondition naming a module whose
///     parameters cannot be overwritten now (nn/module.h), e.g. while they
///     are summoned; kNotFound naming a missing tensor; kInvalidArgument naming
///     a tensor that the model lacks (except a tied model's head that equals
///     the embedding) or whose shape or dtype does not match; kDataLoss for an
///     invalid file; errors of the system.
/// \error While weights change: kDataLoss for a truncated file or, naming file
///     and tensor, for a parameter that is not finite; errors of the disk.
///     These poison the rank (RankContext::Poison).
absl::Status LoadHuggingFace(nn::Llama& model, const std::string& dir);

/// Reads all weights of any model.
/// \param names the names of parameters in the files.
/// \error also as MergeByName.
absl::Status LoadWeights(nn::Module& model, const std::string& dir,
                         const WeightNames& names);

/// Options of SaveHuggingFace and SaveWeights.
struct SaveOptions {
  /// Whether to replace the model's files in a directory that is not empty.
  /// Other files in it stay. new_directory.h states which files are deleted and
  /// when.
  bool overwrite = false;
  /// Whether to write to a directory next to `dir` if `dir` is refused, e.g.
  /// because it was created after CheckSaveDirectory; the error then names that
  /// directory. For weights that exist nowhere else.
  bool use_fallback_directory = false;
  /// Dtype in which floating-point weights are written. Unset: the model's.
  std::optional<DType> dtype = std::nullopt;
  /// If not 0: writes several files and an index. A file has at most this many
  /// bytes of tensors, or one larger tensor.
  int64_t max_file_bytes = 0;
  /// File system calls of this rank. Must outlive the save.
  FileSystem* file_system = &FileSystem::Real();
};

/// Returns the error with which SaveHuggingFace would refuse `dir`, because of
/// its contents or because the system would not allow replacing it. Lets a
/// program find out before training. Creates and removes a directory to try.
/// \error states the obstacle.
absl::Status CheckSaveDirectory(const std::string& dir,
                                const SaveOptions& options = {});

/// Writes config.json and model.safetensors, with parameters and persistent
/// buffers, to the directory `dir`, which is complete or absent at any time.
/// All ranks of `world` must call it, on a shared file system if they are on
/// several machines.
///
/// Each rank writes intervals of the files. One rank writes each replicated
/// shard, chosen so that all ranks write about the same number of bytes
/// (save_plan.h). No rank holds more of a tensor than its own shard. In
/// addition it holds at most 16 MiB of elements that are converted, transposed
/// or not addressable by the host. Disk time does not count towards timeouts of
/// collectives.
/// \error The same on every rank: kAlreadyExists if the directory is not empty
///     or another save wrote it meanwhile; kFailedPrecondition in a dry run,
///     which has no weights, or naming a module whose parameters cannot be read
///     now (nn/module.h), e.g. while they are summoned, or if ranks'
///     models or options would write a weight to different places; errors of
///     the system or of a collective. Complete weights are never deleted: an
///     error after they were written names their directory.
absl::Status SaveHuggingFace(World& world, nn::Llama& model,
                             const std::string& dir,
                             const SaveOptions& options = {});

/// Writes the weights of any model.
/// \param names the names of parameters in the files.
/// \param config the text of config.json.
/// \error also as MergeByName.
absl::Status SaveWeights(World& world, nn::Module& model,
                         const std::string& dir, const WeightNames& names,
                         const std::string& config,
                         const SaveOptions& options = {});

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_HUGGINGFACE_H_
