// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_OFFLINE_H_
#define CROSSHATCH_CHECKPOINT_OFFLINE_H_

/// \file
/// What can be done with a checkpoint (checkpoint.h) without ranks, and without
/// the program that wrote it. Tensors are streamed: none of these holds more
/// than kBlockBytes of a tensor at a time.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/weight_names.h"

namespace crosshatch::checkpoint {

inline constexpr int64_t kBlockBytes = int64_t{16} << 20;

/// A line on the whole, then a line for each value and each tensor: its dtype,
/// shape, the number of cells that it is cut into, and its hash. Reads the
/// index alone.
absl::StatusOr<std::string> Inspect(const std::string& dir);

/// Returns whether all files of a checkpoint are there and hold the tensors
/// that the index names. Reads the index and headers alone. \error what is
/// missing or does not fit
absl::Status CheckComplete(const std::string& dir);

/// Reads all of a checkpoint and compares it with its hashes.
/// \returns a line on what was read
/// \error kDataLoss with a line for each tensor that does not hold what was
///     saved, and each file that is missing or damaged; kFailedPrecondition for
///     a checkpoint without hashes, all of whose files are complete.
absl::StatusOr<std::string> Verify(const std::string& dir);

/// A line for each value and tensor that differs: with the number of elements
/// that do, and the greatest difference of two and where it is. Empty if all is
/// equal bit by bit. How the tensors are cut does not count.
absl::StatusOr<std::string> Diff(const std::string& a, const std::string& b);

/// Writes the checkpoint in `from` to `to`, as `ranks` ranks would that split
/// the first dim of each tensor. The content is verified on the way.
/// \error as SaveCheckpoint; kDataLoss for content that is not what was saved
absl::Status Reshard(const std::string& from, const std::string& to, int ranks,
                     FileSystem& files = FileSystem::Real());

struct ConvertOptions {
  /// The tensors whose names begin so, which is left off.
  std::string prefix = "model.";
  /// Put before what is left of a name. By default a tensor keeps the name that
  /// its module gives it.
  std::string new_prefix = "";
  /// Renames what is left of a name, in place of new_prefix: LlamaNames(family)
  /// gives the names of Hugging Face's files of nn::Llama. Parts of one tensor
  /// are put one below the other.
  std::optional<WeightNames> names = std::nullopt;
  /// A file beyond that many bytes begins a new one, at a tensor.
  int64_t max_file_bytes = int64_t{5'000'000'000};
};

/// Writes the tensors of a checkpoint as Hugging Face's libraries have them:
/// whole, in model.safetensors, or in several files with
/// model.safetensors.index.json. What the checkpoint says nothing of, such as
/// config.json, is not written.
/// \error as Reshard; kNotFound if no tensor has the prefix; kInvalidArgument
///     for a table of names that transposes (that takes a model: SaveWeights),
///     and for parts that are not one tensor's
absl::Status ConvertToHuggingFace(const std::string& from,
                                  const std::string& to,
                                  const ConvertOptions& options = {},
                                  FileSystem& files = FileSystem::Real());

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_OFFLINE_H_
