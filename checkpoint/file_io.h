// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_IO_H_
#define CROSSHATCH_CHECKPOINT_FILE_IO_H_

/// \file
/// File access for checkpoints: reads at any offset, and writes after which a
/// name never refers to an incomplete file. Every error names the path.

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

/// A file that is complete whenever its name exists. It is written as
/// "<path>.saving" ("<path>.saving-2" and so on if that exists) and renamed
/// once its bytes are on the disk.
///
/// Complete bytes are not deleted unless Commit permits it: if Commit fails,
/// its error names the file that has them.
class AtomicFile {
 public:
  /// Creates the file "<path>.saving".
  /// \param files must outlive the file.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(
      std::string path, FileSystem& files = FileSystem::Real());
  /// Removes the file unless Commit was called.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(const void* data, int64_t bytes);
  /// Flushes to the disk and renames the file to its name. Call once.
  /// \param keeps whether the bytes stay if the rename fails.
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

/// Writes a (small) file through an AtomicFile.
/// \param keeps as AtomicFile::Commit.
absl::Status WriteFile(const std::string& path, const std::string& text,
                       FileSystem& files, bool keeps = true);

/// Returns the directory that contains `path`.
std::string ParentOf(const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_IO_H_
