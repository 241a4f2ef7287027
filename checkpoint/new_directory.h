// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
#define CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_

/// \file
/// NewDirectory: the directory of a model, which is complete or absent at any
/// time. Rules for what a save may delete:
///
/// 1. Complete weights are never deleted, except those to be overwritten, once
///    the new ones are in place and on the disk.
/// 2. Files are removed by name: files that this save wrote and abandoned, and
///    files of its kind that the directory had when the save began (for a
///    model: config.json, model.safetensors, its index and its numbered parts).
///    No directory is cleared.
/// 3. Every error names the directory of the data.
///
/// Files are written to a directory next to the target, "<path>.saving"
/// ("<path>.saving-2" and so on if that exists), which is then renamed to the
/// target in one step. If the target is an existing directory, the two are
/// exchanged, files of other kinds are moved over, and the old files of the
/// kind are deleted. A killed process leaves its directory, which later saves
/// do not touch (UnfinishedSaves).

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"

namespace crosshatch::checkpoint {

/// Returns whether a save of some kind writes files called `name`, and so may
/// replace them.
using KindOfFiles = bool (*)(const std::string& name);

/// Renames `from` to `to`, which must not exist, on any file system. Returns
/// the error number; EEXIST if `to` exists.
int RenameToFree(FileSystem& files, const std::string& from,
                 const std::string& to);

/// Returns whether `name` is a file of a Hugging Face model.
bool IsModelFile(const std::string& name);

/// Checks that a directory may be written to `path`: it does not exist, is an
/// empty directory, or is a directory and `overwrite` is set. Also checks that
/// the system would let a new directory replace it and other files move over.
/// For that, makes the calls of a save on a directory that is removed again, so
/// that a program finds out before it starts work.
/// \error kAlreadyExists or kInvalidArgument naming the path and the obstacle
///     (a dangling link, a mount point, a file); errors of the system.
absl::Status CheckMayWrite(const std::string& path, bool overwrite,
                           FileSystem& files = FileSystem::Real(),
                           KindOfFiles kind = IsModelFile);

/// Returns directories next to `path` that running or killed saves to `path`
/// were writing or replacing. They may hold the only copy of a model, and no
/// save removes them; a program can report them to its user.
absl::StatusOr<std::vector<std::string>> UnfinishedSaves(
    const std::string& path, FileSystem& files = FileSystem::Real());

/// A directory that is being written.
class NewDirectory {
 public:
  /// Creates the directory to write to, and missing parents.
  /// \param files must outlive the directory.
  /// \error as CheckMayWrite.
  static absl::StatusOr<std::unique_ptr<NewDirectory>> Create(
      const std::string& path, bool overwrite,
      FileSystem& files = FileSystem::Real(), KindOfFiles kind = IsModelFile);
  /// As Create, for data that exist nowhere else. If `path` is refused, the
  /// directory is next to it, or next to the first part of it that is not a
  /// directory. Commit then leaves it there and returns the error of Create,
  /// with the location of the files.
  static absl::StatusOr<std::unique_ptr<NewDirectory>> CreateOrFallback(
      const std::string& path, bool overwrite,
      FileSystem& files = FileSystem::Real(), KindOfFiles kind = IsModelFile);
  /// Removes the added files, unless Keep or Commit was called.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  /// Returns the directory that files are written to until Commit.
  const std::string& partial_path() const { return partial_; }
  /// Adds the file `name`; returns the path at which to write it.
  std::string Add(const std::string& name);

  /// Stops the deletion of added files: they are complete, or losing them is
  /// worse than keeping some in vain.
  void Keep() { keeps_ = true; }
  /// Returns `error` with the location of the data.
  absl::Status Explain(const absl::Status& error) const;

  /// Moves the directory to its path. Fails without a change if the path was
  /// created or replaced since Create, e.g. by another save. Call once.
  /// \error names the directories of the new and old files.
  absl::Status Commit();

 private:
  /// A file of the kind that the directory had at Create.
  struct OldFile {
    std::string name;
    FileInfo info;
  };

  NewDirectory(FileSystem& files, std::string path, KindOfFiles kind)
      : files_(files), path_(std::move(path)), kind_(kind) {}

  absl::Status Prepare();
  /// Creates the directory to write to, next to `path`.
  absl::Status MakePartial(const std::string& path);
  absl::Status RenameToTarget();
  absl::Status ExchangeWithTarget();
  absl::Status ExchangeByTwoRenames();
  absl::Status EmptyOldDirectory();
  std::string MoveOrDelete(const std::string& name);

  FileSystem& files_;
  const std::string path_;
  const KindOfFiles kind_;
  std::string partial_;
  /// Locks partial_ while it is written to.
  std::optional<DirectoryLock> lock_;
  /// The properties of path_ when the save began.
  FileInfo place_;
  bool replaces_ = false;
  /// Why nothing may be put at path_.
  absl::Status refusal_;
  std::vector<OldFile> old_files_;
  std::vector<std::string> added_;
  /// The location of the replaced directory.
  std::string old_;
  bool keeps_ = false;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
