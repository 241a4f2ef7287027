// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_io.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

absl::Status ToStatus(const std::error_code& error, const char* action,
                      const std::string& path) {
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat("cannot ", action, " ", path));
}

bool IsModelFile(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" ||
         absl::EndsWith(name, ".safetensors") ||
         absl::EndsWith(name, ".safetensors.index.json");
}

/// `path` without trailing slashes, links resolved where it exists.
std::string Normalized(const std::string& path) {
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path, error);
  fs::path normal = error ? fs::path(path).lexically_normal() : resolved;
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.string();
}

/// Moves all but the files of a model from `from` to `to`, where it replaces
/// nothing.
absl::Status MoveRest(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::directory_iterator entry(from, error);
  while (!error && entry != fs::directory_iterator()) {
    const std::string name = entry->path().filename().string();
    const fs::path place = fs::path(to) / name;
    if (!IsModelFile(name) && !fs::exists(place, error) && !error) {
      fs::rename(entry->path(), place, error);
    }
    if (error) return ToStatus(error, "move over", from + "/" + name);
    entry.increment(error);
  }
  return error ? ToStatus(error, "list", from) : absl::OkStatus();
}

/// Whether the directory that `path` would lie in is there and takes files, or
/// can be made.
absl::Status CheckParent(const std::string& path) {
  std::error_code error;
  fs::path parent = fs::absolute(path, error).parent_path();
  while (!error && !fs::exists(parent, error) && parent.has_relative_path()) {
    parent = parent.parent_path();
  }
  if (error) return ToStatus(error, "examine", parent.string());
  if (!fs::is_directory(parent, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write ", path, ": ", parent.string(), " is not a directory"));
  }
  if (access(parent.c_str(), W_OK | X_OK) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot write ", path, " in ", parent.string()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMayWrite(const std::string& path, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return CheckParent(Normalized(path));
  }
  if (error) return ToStatus(error, "examine", path);
  if (!fs::is_directory(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " exists and is not a directory"));
  }
  CH_RETURN_IF_ERROR(CheckParent(Normalized(path)));
  const bool empty = fs::is_empty(path, error);
  if (error) return ToStatus(error, "examine", path);
  if (!empty && !overwrite) {
    return absl::AlreadyExistsError(absl::StrCat(
        path,
        " exists and is not empty; it is replaced only when overwriting "
        "is asked for"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<NewDirectory>> NewDirectory::Create(
    const std::string& given, bool overwrite) {
  const std::string path = Normalized(given);
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", given, "\" names no directory to write"));
  }
  CH_RETURN_IF_ERROR(CheckMayWrite(path, overwrite));
  std::string partial = absl::StrCat(path, ".partial");
  std::error_code error;
  fs::remove_all(partial, error);  // Left by a run that was killed.
  if (error) return ToStatus(error, "remove", partial);
  fs::create_directories(partial, error);
  if (error) return ToStatus(error, "create", partial);
  return std::unique_ptr<NewDirectory>(
      new NewDirectory(path, std::move(partial)));
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

absl::Status NewDirectory::Commit() {
  CH_RETURN_IF_ERROR(SyncDirectory(partial_));
  std::error_code error;
  const bool replaces = fs::exists(path_, error);
  if (error) return ToStatus(error, "examine", path_);
  // Where there is a directory already the two trade places, so that at no time
  // there is none.
  if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(),
                replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot rename ", partial_, " to ", path_));
    }
    // The file system cannot trade names.
    const std::string old = absl::StrCat(path_, ".replaced");
    if (replaces) fs::rename(path_, old, error);
    if (error) return ToStatus(error, "rename", path_);
    fs::rename(partial_, path_, error);
    if (error) return ToStatus(error, "rename", partial_);
    if (replaces) fs::rename(old, partial_, error);
    if (error) return ToStatus(error, "rename", old);
  }
  if (replaces) CH_RETURN_IF_ERROR(MoveRest(partial_, path_));
  const fs::path parent = fs::path(path_).parent_path();
  return SyncDirectory(parent.empty() ? "." : parent.string());
}

}  // namespace crosshatch::checkpoint
