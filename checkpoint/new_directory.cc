// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/new_directory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

bool IsRenameUnknown(int error) { return error == EINVAL || error == ENOSYS; }

/// Returns `path` absolute, without a trailing slash, with links resolved.
/// \error kInvalidArgument for a dangling link.
absl::StatusOr<std::string> Normalized(const std::string& path,
                                       FileSystem& files) {
  if (path.empty()) {
    return absl::InvalidArgumentError("\"\" is not a directory name");
  }
  std::error_code error;
  fs::path normal = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) return SystemError(error.value(), "examine", path);
  if (!normal.has_filename()) normal = normal.parent_path();
  // Parts that were not resolved do not exist or are dangling links.
  for (fs::path at = normal; at.has_relative_path(); at = at.parent_path()) {
    FileInfo info;
    const int failed = files.Examine(at.string(), info);
    if (failed == ENOTDIR) continue;  // A parent is a file.
    if (failed != 0) return SystemError(failed, "examine", at.string());
    if (info.kind == FileInfo::Kind::kLink) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot write ", path, ": ", at.string(), " is a link to ",
          fs::read_symlink(at, error).string(), ", which does not exist"));
    }
    if (info.exists()) break;
  }
  return normal.string();
}

/// Directories to try the calls of a save on, removed by the destructor.
class Trial {
 public:
  explicit Trial(FileSystem& files) : files_(files) {}
  ~Trial() {
    if (!inner_.empty()) files_.RemoveDirectory(inner_);
    if (!outer_.empty()) files_.RemoveDirectory(outer_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Creates them where a save to `path` would create its directory.
  absl::Status Make(const std::string& path) {
    std::string name;
    const int error = TakeFreeName(
        path, ".saving",
        [&](const std::string& n) { return files_.MakeDirectory(n); }, name);
    if (error != 0) {
      return absl::ErrnoToStatus(
          error, absl::StrCat("cannot write ", path, ": cannot create ", name));
    }
    outer_ = name;
    if (const int failed = files_.MakeDirectory(name + "/trial"); failed != 0) {
      return SystemError(failed, "create", name + "/trial");
    }
    inner_ = name + "/trial";
    return absl::OkStatus();
  }

  /// Checks that the system would allow renaming the directory at `path`. Tries
  /// to rename it to a directory that is not empty: that fails, but other
  /// obstacles are reported first.
  absl::Status CheckRename(const std::string& path) {
    const int error = files_.Rename(path, outer_);
    if (error == ENOTEMPTY || error == EEXIST) return absl::OkStatus();
    const char* reason = "";
    if (error == EBUSY) reason = ", a mount point or in use";
    if (error == EXDEV) {
      reason = ", which is in a lower layer of an overlay file system";
    }
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot replace or move ", path, reason));
  }

 private:
  FileSystem& files_;
  std::string outer_;
  std::string inner_;
};

absl::Status MountError(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot write ", path, ": ", what));
}

/// Checks that the entries of a directory to be replaced can be moved and
/// deleted.
absl::Status CheckEntries(const std::string& path,
                          const std::vector<std::string>& names, Trial& trial,
                          FileSystem& files, KindOfFiles kind) {
  for (const std::string& name : names) {
    const std::string entry = absl::StrCat(path, "/", name);
    FileInfo info;
    if (const int error = files.Examine(entry, info); error != 0) {
      return SystemError(error, "examine", entry);
    }
    if (info.is_mount) {
      return MountError(
          path,
          absl::StrCat(
              entry,
              " is a mount point, which cannot be moved to a new directory"));
    }
    if (!info.is_directory()) continue;
    if (kind(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write ", path, ": ", entry, " is a directory"));
    }
    CH_RETURN_IF_ERROR(trial.CheckRename(entry));
  }
  return absl::OkStatus();
}

/// Returns the first missing directory on the way to `path`, or `path`.
absl::StatusOr<std::string> FirstMissing(const std::string& path,
                                         FileSystem& files) {
  fs::path missing = path;
  while (true) {
    const fs::path parent = missing.parent_path();
    FileInfo info;
    const int error = files.Examine(parent.string(), info);
    if (error != 0 && error != ENOTDIR) {
      return SystemError(error, "examine", parent.string());
    }
    if (info.is_directory()) return missing.string();
    if (info.exists()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot write ", path, ": ", parent.string(), " is not a directory"));
    }
    missing = parent;
  }
}

/// Does CheckMayWrite for a normalized path.
absl::Status CheckPlace(const std::string& path, bool overwrite,
                        FileSystem& files, KindOfFiles kind) {
  FileInfo place;
  const int error = files.Examine(path, place);
  if (error != 0 && error != ENOTDIR) {
    return SystemError(error, "examine", path);
  }
  Trial trial(files);
  if (!place.exists()) {
    CH_ASSIGN_OR_RETURN(const std::string missing, FirstMissing(path, files));
    return trial.Make(missing);
  }
  if (!place.is_directory()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " exists and is not a directory"));
  }
  if (place.is_mount || path == "/") {
    return MountError(path,
                      "it is a mount point, which cannot be replaced; name a "
                      "directory in it");
  }
  std::vector<std::string> names;
  if (const int failed = files.List(path, names); failed != 0) {
    return SystemError(failed, "list", path);
  }
  if (!names.empty() && !overwrite) {
    return absl::AlreadyExistsError(absl::StrCat(
        path, " exists and is not empty; set overwrite to replace it"));
  }
  if (!names.empty()) {
    if (const int failed = files.CheckWritable(path); failed != 0) {
      return SystemError(failed, "move or remove files in", path);
    }
  }
  CH_RETURN_IF_ERROR(trial.Make(path));
  CH_RETURN_IF_ERROR(trial.CheckRename(path));
  return CheckEntries(path, names, trial, files, kind);
}

}  // namespace

int RenameToFree(FileSystem& files, const std::string& from,
                 const std::string& to) {
  const int error = files.RenameToNew(from, to);
  if (!IsRenameUnknown(error)) return error;
  FileInfo info;
  if (const int failed = files.Examine(to, info); failed != 0) return failed;
  return info.exists() ? EEXIST : files.Rename(from, to);
}

bool IsModelFile(const std::string& name) {
  return name == "config.json" || name == "model.safetensors" ||
         name == "model.safetensors.index.json" ||
         MatchesDigits(name, "model-#-of-#.safetensors");
}

absl::Status CheckMayWrite(const std::string& given, bool overwrite,
                           FileSystem& files, KindOfFiles kind) {
  CH_ASSIGN_OR_RETURN(const std::string path, Normalized(given, files));
  return CheckPlace(path, overwrite, files, kind);
}

absl::StatusOr<std::vector<std::string>> UnfinishedSaves(
    const std::string& given, FileSystem& files) {
  CH_ASSIGN_OR_RETURN(const std::string path, Normalized(given, files));
  const std::string parent = ParentOf(path);
  std::vector<std::string> names;
  const int error = files.List(parent, names);
  if (error == ENOENT || error == ENOTDIR) return names;
  if (error != 0) return SystemError(error, "list", parent);
  const std::string target = fs::path(path).filename().string();
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (WithoutFreeSuffix(name, ".saving") != target) continue;
    const std::string entry = (fs::path(parent) / name).string();
    FileInfo info;
    if (const int failed = files.Examine(entry, info); failed != 0) {
      return SystemError(failed, "examine", entry);
    }
    if (info.is_directory()) found.push_back(entry);
  }
  return found;
}

absl::StatusOr<std::unique_ptr<NewDirectory>> NewDirectory::Create(
    const std::string& given, bool overwrite, FileSystem& files,
    KindOfFiles kind) {
  CH_ASSIGN_OR_RETURN(std::string path, Normalized(given, files));
  CH_RETURN_IF_ERROR(CheckPlace(path, overwrite, files, kind));
  std::unique_ptr<NewDirectory> directory(
      new NewDirectory(files, std::move(path), kind));
  CH_RETURN_IF_ERROR(directory->Prepare());
  return directory;
}

absl::StatusOr<std::unique_ptr<NewDirectory>> NewDirectory::CreateOrFallback(
    const std::string& given, bool overwrite, FileSystem& files,
    KindOfFiles kind) {
  absl::StatusOr<std::unique_ptr<NewDirectory>> created =
      Create(given, overwrite, files, kind);
  if (created.ok()) return created;
  std::error_code error;
  const fs::path absolute = fs::absolute(given, error).lexically_normal();
  if (error) return created;
  fs::path path;
  for (const fs::path& part : absolute) {
    if (part.empty()) break;  // After a trailing slash.
    path /= part;
    FileInfo info;
    if (files.Examine(path.string(), info) != 0) break;
    // Follows a link if it leads to a directory.
    if (!fs::is_directory(fs::status(path, error))) break;
  }
  std::unique_ptr<NewDirectory> directory(
      new NewDirectory(files, path.string(), kind));
  directory->refusal_ = created.status();
  if (!directory->MakePartial(path.string()).ok()) return created;
  return directory;
}

absl::Status NewDirectory::Prepare() {
  if (const int error = files_.Examine(path_, place_);
      error != 0 && error != ENOTDIR) {
    return SystemError(error, "examine", path_);
  }
  if (place_.exists()) {
    std::vector<std::string> names;
    if (const int error = files_.List(path_, names); error != 0) {
      return SystemError(error, "list", path_);
    }
    replaces_ = !names.empty();
    for (const std::string& name : names) {
      if (!kind_(name)) continue;
      OldFile old{name, {}};
      const std::string entry = absl::StrCat(path_, "/", name);
      if (const int error = files_.Examine(entry, old.info); error != 0) {
        return SystemError(error, "examine", entry);
      }
      old_files_.push_back(std::move(old));
    }
  } else {
    // Creates missing parents from the top down.
    std::vector<std::string> missing;
    for (fs::path at = fs::path(path_).parent_path();; at = at.parent_path()) {
      FileInfo info;
      const int error = files_.Examine(at.string(), info);
      if (error != 0) return SystemError(error, "examine", at.string());
      if (info.exists()) break;
      missing.push_back(at.string());
    }
    std::reverse(missing.begin(), missing.end());
    for (const std::string& parent : missing) {
      const int error = files_.MakeDirectory(parent);
      if (error != 0 && error != EEXIST) {
        return SystemError(error, "create", parent);
      }
    }
  }
  return MakePartial(path_);
}

absl::Status NewDirectory::MakePartial(const std::string& path) {
  std::string name;
  const int error = TakeFreeName(
      path, ".saving",
      [&](const std::string& n) { return files_.MakeDirectory(n); }, name);
  if (error != 0) return SystemError(error, "create", name);
  partial_ = std::move(name);
  lock_.emplace(partial_);
  return absl::OkStatus();
}

NewDirectory::~NewDirectory() {
  if (keeps_ || partial_.empty()) return;
  for (const std::string& name : added_) {
    const std::string file = absl::StrCat(partial_, "/", name);
    files_.RemoveFile(file);
    // The name of an incomplete file.
    files_.RemoveFile(file + ".saving");
  }
  files_.RemoveDirectory(partial_);
}

std::string NewDirectory::Add(const std::string& name) {
  added_.push_back(name);
  return absl::StrCat(partial_, "/", name);
}

absl::Status NewDirectory::Explain(const absl::Status& error) const {
  if (error.ok() || !keeps_) return error;
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), "; the files written for ",
                                   path_, " are in ", partial_));
}

absl::Status NewDirectory::Commit() {
  keeps_ = true;
  if (const int error = files_.SyncDirectory(partial_); error != 0) {
    return Explain(SystemError(error, "flush", partial_));
  }
  if (!refusal_.ok()) return Explain(refusal_);
  CH_RETURN_IF_ERROR(replaces_ ? ExchangeWithTarget() : RenameToTarget());
  const std::string parent = ParentOf(path_);
  if (const int error = files_.SyncDirectory(parent); error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat(
                   path_, " is saved",
                   old_.empty()
                       ? ""
                       : absl::StrCat(" and its former contents are in ", old_),
                   ", but cannot flush ", parent));
  }
  return replaces_ ? EmptyOldDirectory() : absl::OkStatus();
}

absl::Status NewDirectory::RenameToTarget() {
  // A directory can replace an empty directory only.
  const int error = place_.exists() ? files_.Rename(partial_, path_)
                                    : RenameToFree(files_, partial_, path_);
  if (error == 0) return absl::OkStatus();
  if (error == EEXIST || error == ENOTEMPTY) {
    return Explain(absl::AlreadyExistsError(absl::StrCat(
        path_, " was written by another process during this save")));
  }
  return Explain(SystemError(error, "rename " + partial_ + " to", path_));
}

absl::Status NewDirectory::ExchangeWithTarget() {
  const auto changed = [this] {
    return Explain(absl::AbortedError(
        absl::StrCat(path_,
                     " was replaced by another process during this save and is "
                     "not changed")));
  };
  FileInfo now;
  if (const int error = files_.Examine(path_, now); error != 0) {
    return Explain(SystemError(error, "examine", path_));
  }
  if (!now.IsSame(place_)) return changed();
  const int error = files_.Exchange(partial_, path_);
  if (IsRenameUnknown(error)) return ExchangeByTwoRenames();
  if (error != 0) {
    return Explain(SystemError(error, "exchange " + partial_ + " with", path_));
  }
  old_ = partial_;
  // Another save may have replaced it at the same time.
  const int failed = files_.Examine(old_, now);
  if (failed == 0 && now.IsSame(place_)) return absl::OkStatus();
  if (const int back = files_.Exchange(partial_, path_); back != 0) {
    return absl::AbortedError(
        absl::StrCat(path_,
                     " is saved, but replaced a directory that another process "
                     "had written meanwhile, which is now in ",
                     old_));
  }
  old_.clear();
  if (failed != 0) return Explain(SystemError(failed, "examine", partial_));
  return changed();
}

absl::Status NewDirectory::ExchangeByTwoRenames() {
  std::string aside;
  const int error = TakeFreeName(
      path_, ".saving",
      [this](const std::string& name) {
        return RenameToFree(files_, path_, name);
      },
      aside);
  if (error != 0) {
    return Explain(SystemError(error, "rename " + path_ + " to", aside));
  }
  const int failed = RenameToFree(files_, partial_, path_);
  if (failed == 0) {
    old_ = aside;
    return absl::OkStatus();
  }
  const absl::Status status =
      Explain(SystemError(failed, "rename " + partial_ + " to", path_));
  if (RenameToFree(files_, aside, path_) == 0) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), ", and the former contents of ", path_,
                   " are in ", aside));
}

std::string NewDirectory::MoveOrDelete(const std::string& name) {
  const std::string from = absl::StrCat(old_, "/", name);
  const auto known =
      std::find_if(old_files_.begin(), old_files_.end(),
                   [&](const OldFile& old) { return old.name == name; });
  if (known != old_files_.end()) {
    FileInfo now;
    if (const int error = files_.Examine(from, now); error != 0) {
      return std::strerror(error);
    }
    if (!now.IsSame(known->info) || now.size != known->info.size ||
        now.modified_ns != known->info.modified_ns) {
      return "it was written during this save";
    }
    const int error = files_.RemoveFile(from);
    return error == 0 ? "" : std::strerror(error);
  }
  const int error = RenameToFree(files_, from, absl::StrCat(path_, "/", name));
  if (error == EEXIST) return "the new checkpoint has a file of that name";
  return error == 0 ? "" : std::strerror(error);
}

absl::Status NewDirectory::EmptyOldDirectory() {
  const auto incomplete = [this](const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_,
                     " is saved, but some of its former contents could not be "
                     "moved or deleted; they are in ",
                     old_, ": ", why));
  };
  std::vector<std::string> names;
  if (const int error = files_.List(old_, names); error != 0) {
    return incomplete(absl::StrCat("cannot list it: ", std::strerror(error)));
  }
  // Moves all files of other kinds, successfully, before it deletes anything.
  std::stable_partition(names.begin(), names.end(),
                        [this](const std::string& n) { return !kind_(n); });
  std::vector<std::string> problems;
  for (const std::string& name : names) {
    const std::string problem = MoveOrDelete(name);
    if (!problem.empty()) {
      problems.push_back(absl::StrCat(name, " (", problem, ")"));
    }
  }
  if (!problems.empty()) return incomplete(absl::StrJoin(problems, ", "));
  if (const int error = files_.SyncDirectory(path_); error != 0) {
    return incomplete(
        absl::StrCat("cannot flush ", path_, ": ", std::strerror(error)));
  }
  const int error = files_.RemoveDirectory(old_);
  if (error != 0) return incomplete(std::strerror(error));
  return absl::OkStatus();
}

}  // namespace crosshatch::checkpoint
