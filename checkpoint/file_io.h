// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_FILE_IO_H_
#define CROSSHATCH_CHECKPOINT_FILE_IO_H_

/// \file
/// Files as checkpoints need them: read without copying, and written so that a
/// name never stands for half a file. Every error names the path.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace crosshatch::checkpoint {

/// The bytes of a file, mapped read-only. What is not read is not loaded.
class MappedFile {
 public:
  /// \error kNotFound and others of the system; kInvalidArgument for what is
  ///     not a regular file.
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(
      const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  /// Null for an empty file.
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  MappedFile(std::string path, const std::byte* data, int64_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  const std::string path_;
  const std::byte* const data_;
  const int64_t size_;
};

/// The whole of a (small) text file.
absl::StatusOr<std::string> ReadFile(const std::string& path);

/// A file that appears under its name complete or not at all: it is written
/// beside, as "<path>.partial", and renamed once its bytes are on the disk.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(std::string path);
  /// Removes what was written unless Commit succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Append(const void* data, int64_t bytes);
  /// Flushes to the disk and gives the file its name. Call once.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string partial, int fd)
      : path_(std::move(path)), partial_(std::move(partial)), fd_(fd) {}

  const std::string path_;
  const std::string partial_;
  int fd_;
  bool committed_ = false;
};

/// Flushes the entries of a directory (a rename within it) to the disk.
absl::Status SyncDirectory(const std::string& path);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_FILE_IO_H_
