// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/file_system.h"

namespace crosshatch::checkpoint {

absl::StatusOr<std::unique_ptr<const ReadableFile>> ReadableFile::Open(
    const std::string& path) {
  // What is no file may let its opener wait for a writer; it is refused below.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file"));
  }
  std::move(close_fd).Cancel();
  return std::unique_ptr<const ReadableFile>(
      new ReadableFile(path, fd, static_cast<int64_t>(info.st_size)));
}

ReadableFile::~ReadableFile() { close(fd_); }

absl::Status ReadableFile::Read(int64_t offset, int64_t bytes,
                                void* out) const {
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, next, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "read", path_);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(
          path_, " has become shorter while it was read: it had ", size_,
          " bytes, and byte ", offset, " is not there now"));
    }
    next += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<const ReadableFile> file,
                      ReadableFile::Open(path));
  if (file->size() > kMostTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file->size(), " bytes; at most ",
                     kMostTextBytes, " are read"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  CH_RETURN_IF_ERROR(file->Read(0, file->size(), text.data()));
  return text;
}

int TakeSavingName(const std::string& path,
                   absl::FunctionRef<int(const std::string&)> attempt,
                   std::string& taken) {
  taken = absl::StrCat(path, ".saving");
  for (int number = 2;; ++number) {
    const int error = attempt(taken);
    if (error != EEXIST) return error;
    taken = absl::StrCat(path, ".saving-", number);
  }
}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(
    std::string path, FileSystem& files) {
  int fd = -1;
  std::string saving;
  const int error = TakeSavingName(
      path, [&](const std::string& name) { return files.CreateFile(name, fd); },
      saving);
  if (error != 0) return SystemError(error, "create", saving);
  return std::unique_ptr<AtomicFile>(
      new AtomicFile(files, std::move(path), std::move(saving), fd));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) files_.Close(fd_);
  if (!complete_) files_.RemoveFile(saving_);
}

absl::Status AtomicFile::Append(const void* data, int64_t bytes) {
  auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    int64_t written = 0;
    const int error = files_.Write(fd_, next, bytes, written);
    if (error != 0) return SystemError(error, "write to", saving_);
    next += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit(bool keeps) {
  complete_ = keeps;
  const auto failed = [&](int error, const char* action) {
    if (!keeps) return SystemError(error, action, path_);
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot ", action, " ", path_,
                            ", which was written to ", saving_));
  };
  if (const int error = files_.Sync(fd_); error != 0) {
    return failed(error, "flush");
  }
  const int fd = std::exchange(fd_, -1);
  if (const int error = files_.Close(fd); error != 0) {
    return failed(error, "close");
  }
  if (const int error = files_.Rename(saving_, path_); error != 0) {
    return failed(error, "give its name to");
  }
  complete_ = true;
  const std::string parent = ParentOf(path_);
  if (const int error = files_.SyncDirectory(parent); error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat(path_, " is written, but cannot flush ", parent));
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                      AtomicFile::Create(path, files));
  CH_RETURN_IF_ERROR(
      file->Append(text.data(), static_cast<int64_t>(text.size())));
  return file->Commit(keeps);
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace crosshatch::checkpoint
