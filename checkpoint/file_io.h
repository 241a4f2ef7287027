// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_IO_H_
#define CROSSHATCH_CHECKPOINT_FILE_IO_H_

/// \file
/// File access for checkpoints: the system calls of saves, replaceable in
/// tests, reads at any offset, and writes after which a name never refers to an
/// incomplete file. Every error names the path.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

/// A call of FileSystem, for tests.
struct SystemCall {
  const char* name;          ///< Of the function.
  const char* path = "";     ///< Its first path, if it has any.
  FileInfo* info = nullptr;  ///< What Examine sets.
  int fd = -1;               ///< The file of Write, WriteAt, Sync and Close.
  int64_t offset = 0;        ///< Of WriteAt.
  /// Of Write and WriteAt: a test may reduce it before it makes the call.
  int64_t bytes = 0;
};

/// The system calls of saves. Each returns 0 or the error number. Paths are
/// passed to the system as they are.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Returns the one that makes the real calls.
  static FileSystem& Real();

  /// Sets `info` to the properties of `path`. A path that does not exist is no
  /// error.
  int Examine(const std::string& path, FileInfo& info);
  /// Sets `names` to the sorted names in a directory, without "." and "..".
  int List(const std::string& path, std::vector<std::string>& names);

  /// Checks that names in a directory may be created and removed.
  int CheckWritable(const std::string& directory);

  /// Returns EEXIST if the name exists, also as a dangling link.
  int MakeDirectory(const std::string& path);
  int RemoveDirectory(const std::string& path);
  int RemoveFile(const std::string& path);
  /// Replaces a file by a file, or an empty directory by a directory.
  int Rename(const std::string& from, const std::string& to);
  /// Renames without replacing. Returns EEXIST if `to` exists, EINVAL or ENOSYS
  /// if the file system has no such call.
  int RenameToNew(const std::string& from, const std::string& to);
  /// Exchanges two names atomically. EINVAL and ENOSYS as RenameToNew.
  int Exchange(const std::string& a, const std::string& b);
  /// Flushes the names in a directory. Returns 0 if the file system cannot.
  int SyncDirectory(const std::string& path);

  /// Creates a file and opens it. Returns EEXIST if the name exists.
  int CreateFile(const std::string& path, int& fd);
  /// Opens an existing file for WriteAt. Returns ENOENT if there is none.
  int OpenFile(const std::string& path, int& fd);
  /// Sets the length of a file; new bytes are zeros.
  int SetLength(int fd, int64_t bytes);
  /// Appends some of the bytes.
  int Write(int fd, const void* data, int64_t bytes, int64_t& written);
  /// Writes some of the bytes at `offset`. Others may write to other parts of
  /// the file at the same time.
  int WriteAt(int fd, int64_t offset, const void* data, int64_t bytes,
              int64_t& written);
  int Sync(int fd);
  int Close(int fd);

 private:
  /// Returns the result of `make`, which makes the system call. A test
  /// overrides it to make any call fail or wait, to kill the process after it,
  /// or to act between two calls.
  virtual int Make(SystemCall& call, absl::FunctionRef<int()> make);
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

/// The maximal number of descriptors that all ReadableFiles of a process keep
/// open, apart from running reads.
inline constexpr size_t kMaxOpenFiles = 128;

/// A file that can be read at any offset. Immutable; threads may share it.
/// Reads copy instead of mapping the file: if a mapped file is truncated or its
/// disk fails, an access ends the process.
///
/// Any number of files may exist. Beyond kMaxOpenFiles, the least recently read
/// one is closed and opened again when it is read.
class ReadableFile {
 public:
  /// Opens the file at `path`.
  /// \error kInvalidArgument if it is not a regular file; kNotFound and other
  ///     errors of the system.
  static absl::StatusOr<std::unique_ptr<const ReadableFile>> Open(
      const std::string& path);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  const std::string& path() const { return path_; }
  /// Returns the size in bytes at the time of Open.
  int64_t size() const { return size_; }

  /// Copies `bytes` bytes at `offset` to `out`.
  /// \pre they are within size().
  /// \error kDataLoss if the file was truncated or replaced since Open; errors
  ///     of the system.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  friend class OpenFiles;
  struct Descriptor;

  explicit ReadableFile(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<std::shared_ptr<const Descriptor>> OpenDescriptor(
      struct stat& info) const;

  const std::string path_;
  int64_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  /// Null while the file is closed. Guarded by the mutex of OpenFiles.
  mutable std::shared_ptr<const Descriptor> descriptor_;
};

/// The maximal size that ReadFile reads, 1 GB: more than any config or index.
inline constexpr int64_t kMaxTextBytes = 1'000'000'000;

/// Returns the content of a (small) text file.
/// \error as ReadableFile::Open and Read; kInvalidArgument if the file is
///     larger than kMaxTextBytes.
absl::StatusOr<std::string> ReadFile(const std::string& path);

/// Calls `attempt` with `<path><suffix>`, `<path><suffix>-2`, ... until it
/// returns something other than EEXIST, so that the name is unused.
/// \param taken set to the last name.
/// \returns the error number of the last call.
int TakeFreeName(const std::string& path, const std::string& suffix,
                 absl::FunctionRef<int(const std::string&)> attempt,
                 std::string& taken);

/// Returns whether `name` matches `pattern`, in which each '#' stands for a
/// number in the format %05d: more than five digits do not begin with 0.
bool MatchesDigits(absl::string_view name, absl::string_view pattern);

/// Inverts TakeFreeName: returns what precedes `suffix` in a name that it
/// tries; nullopt for other names.
std::optional<std::string> WithoutFreeSuffix(const std::string& name,
                                             const std::string& suffix);

/// Writes a (small) file that is complete whenever its name exists: as
/// "<path>.saving" ("<path>.saving-2" and so on if that exists), renamed once
/// its bytes are on the disk.
/// \param keeps whether complete bytes stay if they cannot be flushed or
///     renamed. The error then names the file that has them.
absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps = true);

/// Returns the directory that contains `path`.
std::string ParentOf(const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_IO_H_
