// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_
#define CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_

/// \file
/// FileSystem: the file system calls of saves, replaceable in tests.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace crosshatch::checkpoint {

/// The properties of a path. A link is not followed.
struct FileInfo {
  enum class Kind { kNone, kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kNone;
  /// Whether the path is a mount point.
  bool is_mount = false;
  /// Identify the file and its version: a file that is replaced or changed
  /// differs in them.
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t modified_ns = 0;

  bool exists() const { return kind != Kind::kNone; }
  bool is_directory() const { return kind == Kind::kDirectory; }
  /// Returns whether both are the same file or directory, whatever its content.
  bool IsSame(const FileInfo& other) const {
    return exists() && kind == other.kind && device == other.device &&
           inode == other.inode;
  }
};

/// The system calls, one per function, so that a test can make any of them
/// fail, or kill the process after it.
///
/// Each returns 0 or the error number. Paths are passed to the system as they
/// are.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Returns the one that makes the real calls.
  static FileSystem& Real();

  /// Sets `info` to the properties of `path`. A path that does not exist is no
  /// error.
  virtual int Examine(const std::string& path, FileInfo& info);
  /// Sets `names` to the sorted names in a directory, without "." and "..".
  virtual int List(const std::string& path, std::vector<std::string>& names);

  /// Checks that names in a directory may be created and removed.
  virtual int CheckWritable(const std::string& directory);

  /// Returns EEXIST if the name exists, also as a dangling link.
  virtual int MakeDirectory(const std::string& path);
  virtual int RemoveDirectory(const std::string& path);
  virtual int RemoveFile(const std::string& path);
  /// Replaces a file by a file, or an empty directory by a directory.
  virtual int Rename(const std::string& from, const std::string& to);
  /// Renames without replacing. Returns EEXIST if `to` exists, EINVAL or ENOSYS
  /// if the file system has no such call.
  virtual int RenameToNew(const std::string& from, const std::string& to);
  /// Exchanges two names atomically. EINVAL and ENOSYS as RenameToNew.
  virtual int Exchange(const std::string& a, const std::string& b);
  /// Flushes the names in a directory. Returns 0 if the file system cannot.
  virtual int SyncDirectory(const std::string& path);

  /// Creates a file and opens it. Returns EEXIST if the name exists.
  virtual int CreateFile(const std::string& path, int& fd);
  /// Opens an existing file for WriteAt. Returns ENOENT if there is none.
  virtual int OpenFile(const std::string& path, int& fd);
  /// Sets the length of a file; new bytes are zeros.
  virtual int SetLength(int fd, int64_t bytes);
  /// Appends some of the bytes.
  virtual int Write(int fd, const void* data, int64_t bytes, int64_t& written);
  /// Writes some of the bytes at `offset`. Others may write to other parts of
  /// the file at the same time.
  virtual int WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
                      int64_t& written);
  virtual int Sync(int fd);
  virtual int Close(int fd);
};

/// Locks a directory that a save writes to, until this object is destroyed or
/// the process ends. Some network file systems have no such locks.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  /// Returns 0 if this object holds the lock, EWOULDBLOCK if another one does,
  /// or the error number if the system has no locks.
  int error() const { return error_; }

 private:
  int fd_ = -1;
  int error_ = 0;
};

/// Returns "cannot ACTION PATH: " with the text of `error`, which is not 0.
absl::Status SystemError(int error, absl::string_view action,
                         const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_
