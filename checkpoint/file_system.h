// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_
#define CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_

/// \file
/// The one seam between what a save does and the disk it does it to.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace crosshatch::checkpoint {

/// What a name stands for, a link taken for itself.
struct FileInfo {
  enum class Kind { kNone, kFile, kDirectory, kLink, kOther };
  Kind kind = Kind::kNone;
  /// Another file system, or another part of one, begins here.
  bool is_mount = false;
  /// Tell a file from one that took its name, and from itself changed.
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t modified_ns = 0;

  bool exists() const { return kind != Kind::kNone; }
  bool is_directory() const { return kind == Kind::kDirectory; }
  /// The same file or directory, whatever is in it.
  bool IsSame(const FileInfo& other) const {
    return exists() && kind == other.kind && device == other.device &&
           inode == other.inode;
  }
};

/// The system's calls, one a function, so that a test can let any of them fail,
/// or be the last before the process is killed.
///
/// Each returns 0 or the error number. Paths are the system's.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// The machine's.
  static FileSystem& Real();

  /// A name that stands for nothing is no error: `info` says so.
  virtual int Examine(const std::string& path, FileInfo& info);
  /// The names in a directory but "." and "..", in order.
  virtual int List(const std::string& path, std::vector<std::string>& names);

  /// Whether names in a directory may be made and removed.
  virtual int CheckWritable(const std::string& directory);

  /// EEXIST where the name is taken, by a dangling link too.
  virtual int MakeDirectory(const std::string& path);
  virtual int RemoveDirectory(const std::string& path);
  virtual int RemoveFile(const std::string& path);
  /// Replaces a file by a file and an empty directory by a directory.
  virtual int Rename(const std::string& from, const std::string& to);
  /// EEXIST where `to` is taken; EINVAL or ENOSYS where the file system has no
  /// such call.
  virtual int RenameToNew(const std::string& from, const std::string& to);
  /// Both names stand for something at all times. EINVAL and ENOSYS as above.
  virtual int Exchange(const std::string& a, const std::string& b);
  /// Flushes the names in a directory. No error where it cannot be done.
  virtual int SyncDirectory(const std::string& path);

  /// EEXIST where the name is taken.
  virtual int CreateFile(const std::string& path, int& fd);
  /// A file that is there, for WriteAt; ENOENT where there is none.
  virtual int OpenFile(const std::string& path, int& fd);
  /// Makes a file so long; what it did not have is zeros.
  virtual int SetLength(int fd, int64_t bytes);
  /// Writes some of the bytes.
  virtual int Write(int fd, const void* data, int64_t bytes, int64_t& written);
  /// Writes some of the bytes to where they belong, `offset` bytes from the
  /// start. Others may write elsewhere in the file meanwhile.
  virtual int WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
                      int64_t& written);
  virtual int Sync(int fd);
  virtual int Close(int fd);
};

/// Marks a directory as one that a save writes to, for as long as this lives
/// and the process does. Some file systems of networks have no such marks.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  /// Returns 0 if this holds the mark, EWOULDBLOCK if another does, or why the
  /// system gives none.
  int error() const { return error_; }

 private:
  int fd_ = -1;
  int error_ = 0;
};

/// "cannot ACTION PATH: " and what the system says of `error`, which is not 0.
absl::Status SystemError(int error, absl::string_view action,
                         const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_SYSTEM_H_
