// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::checkpoint {
namespace {

absl::Status SystemError(const char* action, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " ", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("examine", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file"));
  }
  const auto size = static_cast<int64_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return SystemError("map", path);
  }
  return std::unique_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  CH_ASSIGN_OR_RETURN(const std::unique_ptr<const MappedFile> file,
                      MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file->data()),
                     static_cast<size_t>(file->size()));
}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(
    std::string path) {
  std::string partial = absl::StrCat(path, ".partial");
  const int fd =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError("create", partial);
  return std::unique_ptr<AtomicFile>(
      new AtomicFile(std::move(path), std::move(partial), fd));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!committed_) unlink(partial_.c_str());
}

absl::Status AtomicFile::Append(const void* data, int64_t bytes) {
  // Linux writes at most 0x7ffff000 bytes at a time.
  constexpr int64_t kMostAtOnce = int64_t{1} << 30;
  auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written =
        write(fd_, next, static_cast<size_t>(std::min(bytes, kMostAtOnce)));
    if (written < 0) {
      if (errno == EINTR) continue;
      return SystemError("write to", partial_);
    }
    next += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return SystemError("flush", partial_);
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) return SystemError("close", partial_);
  if (rename(partial_.c_str(), path_.c_str()) != 0) {
    return SystemError("rename to", path_);
  }
  committed_ = true;
  std::string parent = std::filesystem::path(path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  // Some file systems cannot flush a directory and say EINVAL.
  if (fsync(fd) != 0 && errno != EINVAL) return SystemError("flush", path);
  return absl::OkStatus();
}

}  // namespace crosshatch::checkpoint
