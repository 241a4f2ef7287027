// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
#define CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_

/// \file
/// The weight files of a Hugging Face directory in the making: one
/// model.safetensors, or several with an index.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/new_directory.h"
#include "crosshatch/checkpoint/safetensors.h"

namespace crosshatch::checkpoint {

/// Written in one pass, in an order announced up front.
class WeightFiles {
 public:
  /// \param directory outlives this, as `files` does
  /// \param most_bytes of tensors in a file; a tensor that is larger has a file
  ///     of its own. 0: all in one.
  /// \error as SafetensorsWriter::Create
  static absl::StatusOr<std::unique_ptr<WeightFiles>> Create(
      NewDirectory& directory, std::vector<TensorInfo> tensors,
      int64_t most_bytes, FileSystem& files = FileSystem::Real());

  /// The next `bytes` of the tensor `name`, which is the one announced after
  /// those that are complete. Does nothing for 0 bytes.
  absl::Status Write(const std::string& name, const void* data, int64_t bytes);
  /// Call once, after all tensors. Before, all but the last file have their
  /// names.
  absl::Status Finish();

 private:
  WeightFiles(NewDirectory& directory, FileSystem& files)
      : directory_(directory), files_(files) {}

  absl::Status OpenNext();
  std::string FileName(size_t file) const;

  NewDirectory& directory_;
  FileSystem& files_;
  std::vector<std::vector<TensorInfo>> by_file_;
  size_t file_ = 0;  ///< That is being written.
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
