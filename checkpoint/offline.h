// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_OFFLINE_H_
#define CROSSHATCH_CHECKPOINT_OFFLINE_H_

/// \file
/// Operations on checkpoints (checkpoint.h) that need neither ranks nor the
/// program that wrote them. They stream tensors and hold at most kBlockBytes of
/// a tensor at a time.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/weight_names.h"

namespace crosshatch::checkpoint {

inline constexpr int64_t kBlockBytes = int64_t{16} << 20;

/// Returns a summary line, then a line per value and per tensor with dtype,
/// shape, number of cells and hash. Reads the index only.
absl::StatusOr<std::string> Inspect(const std::string& dir);

/// Checks that all files of a checkpoint exist and hold the tensors that the
/// index names. Reads the index and headers only.
/// \error names what is missing or does not match.
absl::Status CheckComplete(const std::string& dir);

/// Reads all of a checkpoint and compares it with its hashes.
/// \returns a line that summarizes what was read.
/// \error kDataLoss with a line for each tensor whose content differs from what
///     was saved and for each missing or damaged file; kFailedPrecondition if
///     the files are complete but the checkpoint has no hashes.
absl::StatusOr<std::string> Verify(const std::string& dir);

/// Returns a line for each value and tensor that differs: the number of
/// different elements, the largest difference and its place. Empty if all are
/// bitwise equal. Ignores how tensors are cut.
absl::StatusOr<std::string> Diff(const std::string& a, const std::string& b);

/// Copies the checkpoint in `from` to `to`, with the files of `ranks` ranks
/// that shard dim 0 of each tensor. Verifies the content.
/// \error as SaveCheckpoint; kDataLoss if the content differs from what was
///     saved.
absl::Status Reshard(const std::string& from, const std::string& to, int ranks,
                     FileSystem& files = FileSystem::Real());

/// Options of ConvertToHuggingFace.
struct ConvertOptions {
  /// Selects the tensors whose names begin with it; it is removed.
  std::string prefix = "model.";
  /// Prepended to the rest of a name. By default a tensor has the name that its
  /// module gives it.
  std::string new_prefix = "";
  /// Renames the rest of a name, instead of new_prefix. LlamaNames(family) has
  /// the names of Hugging Face's files of nn::Llama. Parts of one tensor are
  /// concatenated along dim 0.
  std::optional<WeightNames> names = std::nullopt;
  /// Maximal size of a file in bytes; a new file begins at a tensor.
  int64_t max_file_bytes = int64_t{5'000'000'000};
};

/// Writes the tensors of a checkpoint as whole tensors for Hugging Face's
/// libraries: model.safetensors, or several files with
/// model.safetensors.index.json. Does not write what a checkpoint lacks, such
/// as config.json.
/// \error as Reshard; kNotFound if no tensor has the prefix; kInvalidArgument
///     for a table of names that transposes (SaveWeights does that), and for
///     parts that do not make up one tensor.
absl::Status ConvertToHuggingFace(const std::string& from,
                                  const std::string& to,
                                  const ConvertOptions& options = {},
                                  FileSystem& files = FileSystem::Real());

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_OFFLINE_H_
