// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_IO_H_
#define CROSSHATCH_CHECKPOINT_FILE_IO_H_

/// \file
/// Files as checkpoints need them: read in parts, and written so that a name
/// never stands for half a file. Every error names the path.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"

namespace crosshatch::checkpoint {

/// The most descriptors that all ReadableFiles of a process have open at once,
/// apart from reads that are going on.
inline constexpr size_t kMostOpenFiles = 128;

/// A file open for reading at any place. Immutable; may be shared between
/// threads. What is read is copied, not mapped: where a file that is mapped
/// becomes shorter, or its disk fails, a touch of it ends the process.
///
/// Any number of them may exist: beyond kMostOpenFiles the one that was read
/// longest ago is closed, and opened again when it is read.
class ReadableFile {
 public:
  /// \error kNotFound and others of the system; kInvalidArgument for what is
  ///     not a regular file.
  static absl::StatusOr<std::unique_ptr<const ReadableFile>> Open(
      const std::string& path);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  const std::string& path() const { return path_; }
  /// In bytes, when it was opened.
  int64_t size() const { return size_; }

  /// Copies the `bytes` from `offset` on to `out`.
  /// \pre they lie within size()
  /// \error kDataLoss where the file has become shorter since it was opened, or
  ///     another one has its name; what the system says of a disk that fails
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
  /// Null while it is closed. Guarded by the mutex of OpenFiles.
  mutable std::shared_ptr<const Descriptor> descriptor_;
};

/// What ReadFile reads at most, 1 GB: more than any config or index has.
inline constexpr int64_t kMostTextBytes = 1'000'000'000;

/// The whole of a (small) text file.
/// \error as ReadableFile::Open and Read; kInvalidArgument beyond
/// kMostTextBytes.
absl::StatusOr<std::string> ReadFile(const std::string& path);

/// Calls `attempt` with `<path><suffix>`, `<path><suffix>-2`, ... until it
/// returns other than EEXIST, so that the name is nobody else's. Sets `taken`
/// to that name, and returns the error number of `attempt`.
int TakeFreeName(const std::string& path, const std::string& suffix,
                 absl::FunctionRef<int(const std::string&)> attempt,
                 std::string& taken);

/// A file that appears under its name complete or not at all: it is written
/// beside, as "<path>.saving" (or "<path>.saving-2" and so on, where that name
/// is taken), and renamed once its bytes are on the disk.
///
/// Bytes that are complete are never deleted, unless Commit is told that they
/// can be had again: where it fails, its error says under which name they lie.
class AtomicFile {
 public:
  /// \param files outlives the file
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(
      std::string path, FileSystem& files = FileSystem::Real());
  /// Removes what was written unless Commit was called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(const void* data, int64_t bytes);
  /// Flushes to the disk and gives the file its name. Call once.
  /// \param keeps whether the bytes stay where the name cannot be given
  absl::Status Commit(bool keeps = true);

 private:
  AtomicFile(FileSystem& files, std::string path, std::string saving, int fd)
      : files_(files),
        path_(std::move(path)),
        saving_(std::move(saving)),
        fd_(fd) {}

  FileSystem& files_;
  const std::string path_;
  const std::string saving_;
  int fd_;
  bool complete_ = false;
};

/// Writes a (small) file by an AtomicFile.
/// \param keeps as AtomicFile::Commit
absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps = true);

/// The directory that `path` lies in.
std::string ParentOf(const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_IO_H_
