// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
#define CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_

/// \file
/// A directory of a model that appears complete or not at all, and the rule for
/// what a save may delete:
///
/// 1. Complete weights are never deleted, but for those that overwriting was
///    asked to replace, once the new ones are in place and on the disk.
/// 2. What is removed is removed by name: files that this save wrote and gave
///    up, and the files of its kind that the directory held when the save began
///    (of a model config.json, model.safetensors, its index and its numbered
///    parts). No directory is emptied.
/// 3. Every error says where the data lie.
///
/// Files are written to a directory beside the place, "<place>.saving" (or
/// "<place>.saving-2" and so on where that name is taken), which then takes the
/// place in one step. Where the place holds a directory already, the two trade
/// names, what is not of the kind moves over, and the old files of the kind are
/// deleted. A process that is killed leaves that directory; later saves do not
/// touch it (FindUnfinishedSaves).

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"

namespace crosshatch::checkpoint {

/// Tells by their names the files that a save of some kind writes, and so may
/// replace.
using KindOfFiles = bool (*)(const std::string& name);

/// Renames `from` to a name that is free, on any file system. Returns the error
/// number, EEXIST where `to` is taken.
int RenameToFree(FileSystem& files, const std::string& from,
                 const std::string& to);

/// Those of a Hugging Face model.
bool IsModelFile(const std::string& name);

/// Whether a directory may be written at `path`: nothing is there yet, or an
/// empty directory, or `overwrite` is set and it is a directory; and the system
/// would let the new one take its place and all else move over. The system is
/// asked by the calls that a save makes, on a directory made for it and removed
/// again, so that a program finds out before it starts work.
/// \error kAlreadyExists or kInvalidArgument naming the path and what stands in
///     the way (a link to nothing, a mount point, a file), or what the system
///     said.
absl::Status CheckMayWrite(const std::string& path, bool overwrite,
                           FileSystem& files = FileSystem::Real(),
                           KindOfFiles kind = IsModelFile);

/// Directories beside `path` that saves to it have left, or are writing now:
/// what a killed one was writing, or was replacing.
absl::StatusOr<std::vector<std::string>> FindUnfinishedSaves(
    const std::string& path, FileSystem& files = FileSystem::Real());

/// A directory in the making.
class NewDirectory {
 public:
  /// Makes the parents where they are missing.
  /// \param files outlives the directory
  /// \error as CheckMayWrite
  static absl::StatusOr<std::unique_ptr<NewDirectory>> Create(
      const std::string& path, bool overwrite,
      FileSystem& files = FileSystem::Real(), KindOfFiles kind = IsModelFile);
  /// For data that nothing else holds, where Create says no: files are written
  /// beside `path`, or beside the first part of it that is no directory, and
  /// Commit leaves them there and fails.
  /// \param refusal (not OK) why Create said no; what Commit says, with where
  ///     the files lie.
  static absl::StatusOr<std::unique_ptr<NewDirectory>> CreateBeside(
      const std::string& path, absl::Status refusal,
      FileSystem& files = FileSystem::Real());
  /// Removes the files added, unless Keep or Commit was called.
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  /// Where files are written until Commit.
  const std::string& partial_path() const { return partial_; }
  /// The path at which to write the directory's file `name`.
  std::string Add(const std::string& name);

  /// From here on nothing that was added is deleted, whatever happens: it is
  /// complete, or its loss is worse than a file too many.
  void Keep() { keeps_ = true; }
  /// `error`, with where the data lie.
  absl::Status Explain(const absl::Status& error) const;

  /// Puts the directory in place. Fails without a change where something else
  /// took the place since Create, another save for instance. Call once.
  /// \error says where the new files lie, and the old ones.
  absl::Status Commit();

 private:
  /// A file of the kind that the directory held, as it was at Create.
  struct OldFile {
    std::string name;
    FileInfo info;
  };

  NewDirectory(FileSystem& files, std::string path, KindOfFiles kind)
      : files_(files), path_(std::move(path)), kind_(kind) {}

  absl::Status Prepare();
  /// Makes the directory to write to beside `path`.
  absl::Status MakePartial(const std::string& path);
  absl::Status TakeFreePlace();
  absl::Status TradePlaces();
  absl::Status TradeByTwoRenames();
  absl::Status EmptyOldDirectory();
  std::string MoveOrDelete(const std::string& name);

  FileSystem& files_;
  const std::string path_;
  const KindOfFiles kind_;
  std::string partial_;
  /// Marks partial_ as written to.
  std::optional<DirectoryLock> lock_;
  /// What is at path_ when the save begins.
  FileInfo place_;
  bool replaces_ = false;
  /// Why nothing may be put at path_.
  absl::Status refusal_;
  std::vector<OldFile> old_files_;
  std::vector<std::string> added_;
  /// Where the directory that was replaced lies.
  std::string old_;
  bool keeps_ = false;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_NEW_DIRECTORY_H_
