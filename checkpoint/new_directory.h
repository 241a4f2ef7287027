// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
#define CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_

/// \file
/// A directory that appears complete or not at all.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace crosshatch::checkpoint {

/// Whether a directory may be written at `path`: nothing is there yet, or an
/// empty directory, or `overwrite` is set and it is a directory; and the
/// directory around it takes files or can be made. Changes nothing, so that a
/// program can ask before it starts work.
/// \error kAlreadyExists or kInvalidArgument naming the path, or what the
///     system said, as kPermissionDenied.
absl::Status CheckMayWrite(const std::string& path, bool overwrite);

/// Files are written to partial_path(), beside the directory's own place, and
/// Commit puts the directory there in one step. What is written when no Commit
/// follows is removed.
class NewDirectory {
 public:
  /// Makes the parents where they are missing.
  /// \error as CheckMayWrite, and what the system says.
  static absl::StatusOr<std::unique_ptr<NewDirectory>> Create(
      const std::string& path, bool overwrite);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::string& partial_path() const { return partial_; }

  /// Puts the directory in place. Of a directory that it replaces, the files of
  /// a model (config.json, generation_config.json, *.safetensors and its index)
  /// go, and all else (a tokenizer, notes) moves over.
  absl::Status Commit();

 private:
  NewDirectory(std::string path, std::string partial)
      : path_(std::move(path)), partial_(std::move(partial)) {}

  const std::string path_;
  const std::string partial_;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
