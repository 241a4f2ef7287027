// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace crosshatch::checkpoint {
namespace {

// Linux writes at most 0x7ffff000 bytes at a time.
constexpr int64_t kMaxWriteBytes = int64_t{1} << 30;

int ErrorOf(int result) { return result == 0 ? 0 : errno; }

FileInfo::Kind KindOf(uint32_t mode) {
  if (S_ISREG(mode)) return FileInfo::Kind::kFile;
  if (S_ISDIR(mode)) return FileInfo::Kind::kDirectory;
  if (S_ISLNK(mode)) return FileInfo::Kind::kLink;
  return FileInfo::Kind::kOther;
}

}  // namespace

FileSystem& FileSystem::Real() {
  static FileSystem real;
  return real;
}

int FileSystem::Examine(const std::string& path, FileInfo& info) {
  info = {};
  struct statx found;
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
            STATX_BASIC_STATS, &found) != 0) {
    return errno == ENOENT ? 0 : errno;
  }
  info.kind = KindOf(found.stx_mode);
  // Older kernels do not report it; the rename then fails with EBUSY.
  info.is_mount = (found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0 &&
                  (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  info.device = makedev(found.stx_dev_major, found.stx_dev_minor);
  info.inode = found.stx_ino;
  info.size = static_cast<int64_t>(found.stx_size);
  info.modified_ns =
      found.stx_mtime.tv_sec * 1'000'000'000 + found.stx_mtime.tv_nsec;
  return 0;
}

int FileSystem::List(const std::string& path, std::vector<std::string>& names) {
  names.clear();
  DIR* const directory = opendir(path.c_str());
  if (directory == nullptr) return errno;
  int error = 0;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(directory);
    if (entry == nullptr) {
      error = errno;
      break;
    }
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(directory);
  std::sort(names.begin(), names.end());
  return error;
}

int FileSystem::CheckWritable(const std::string& directory) {
  return ErrorOf(access(directory.c_str(), W_OK | X_OK));
}

int FileSystem::MakeDirectory(const std::string& path) {
  return ErrorOf(mkdir(path.c_str(), 0777));
}

int FileSystem::RemoveDirectory(const std::string& path) {
  return ErrorOf(rmdir(path.c_str()));
}

int FileSystem::RemoveFile(const std::string& path) {
  return ErrorOf(unlink(path.c_str()));
}

int FileSystem::Rename(const std::string& from, const std::string& to) {
  return ErrorOf(rename(from.c_str(), to.c_str()));
}

int FileSystem::RenameToNew(const std::string& from, const std::string& to) {
  return ErrorOf(renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                           RENAME_NOREPLACE));
}

int FileSystem::Exchange(const std::string& a, const std::string& b) {
  return ErrorOf(
      renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

int FileSystem::SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  int error = ErrorOf(fsync(fd));
  // Some file systems cannot flush a directory and return EINVAL.
  if (error == EINVAL) error = 0;
  close(fd);
  return error;
}

int FileSystem::CreateFile(const std::string& path, int& fd) {
  fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return fd < 0 ? errno : 0;
}

int FileSystem::OpenFile(const std::string& path, int& fd) {
  fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  return fd < 0 ? errno : 0;
}

int FileSystem::SetLength(int fd, int64_t bytes) {
  int result;
  do {
    result = ftruncate(fd, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return ErrorOf(result);
}

int FileSystem::Write(int fd, const void* data, int64_t bytes,
                      int64_t& written) {
  written = 0;
  ssize_t result;
  do {
    result =
        write(fd, data, static_cast<size_t>(std::min(bytes, kMaxWriteBytes)));
  } while (result < 0 && errno == EINTR);
  if (result < 0) return errno;
  written = result;
  return 0;
}

int FileSystem::WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
                        int64_t& written) {
  written = 0;
  ssize_t result;
  do {
    result =
        pwrite(fd, data, static_cast<size_t>(std::min(bytes, kMaxWriteBytes)),
               static_cast<off_t>(offset));
  } while (result < 0 && errno == EINTR);
  if (result < 0) return errno;
  written = result;
  return 0;
}

int FileSystem::Sync(int fd) { return ErrorOf(fsync(fd)); }

int FileSystem::Close(int fd) { return ErrorOf(close(fd)); }

DirectoryLock::DirectoryLock(const std::string& path)
    : fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) != 0) error_ = errno;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

absl::Status SystemError(int error, absl::string_view action,
                         const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot ", action, " ", path));
}

}  // namespace crosshatch::checkpoint
