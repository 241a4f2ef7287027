// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
#define CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_

/// \file
/// The weight files of a Hugging Face directory in the making, one
/// model.safetensors or several with an index, which ranks write together: each
/// the intervals that it has.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_system.h"
#include "crosshatch/checkpoint/safetensors.h"

namespace crosshatch::checkpoint {

/// What lies where in the files: a function of what it is made of, which ranks
/// that write together compare before.
class WeightFilesPlan {
 public:
  struct File {
    std::string name;
    /// All before the elements (SafetensorsStart).
    std::string start;
    std::vector<TensorInfo> tensors;
    int64_t bytes() const;  ///< Of all of it.
  };
  /// Of a tensor.
  struct Place {
    size_t file = 0;
    int64_t offset = 0;  ///< Of the first element, in bytes, in the file.
  };

  /// \param most_bytes of tensors in a file; a tensor that is larger has a file
  ///     of its own. 0: all in one.
  /// \error as SafetensorsStart
  static absl::StatusOr<WeightFilesPlan> Create(std::vector<TensorInfo> tensors,
                                                int64_t most_bytes);

  const std::vector<File>& files() const { return files_; }
  /// \pre `tensor` is one of those given, checked
  Place PlaceOf(const std::string& tensor) const;
  /// The text of model.safetensors.index.json; empty where one file has all.
  std::string IndexText() const;

 private:
  std::vector<File> files_;
  std::map<std::string, Place> places_;
};

/// The files while they are written, as one rank sees them. They are named
/// "<name>.saving" until all are complete.
class WeightFiles {
 public:
  /// \param directory that nobody else writes to
  /// \param plan, files outlive this
  WeightFiles(std::string directory, const WeightFilesPlan& plan,
              FileSystem& files)
      : directory_(std::move(directory)), plan_(plan), files_(files) {}
  ~WeightFiles();
  WeightFiles(const WeightFiles&) = delete;
  WeightFiles& operator=(const WeightFiles&) = delete;

  /// First rank, before any rank writes: makes the files, as long as they will
  /// be, with their starts.
  absl::Status Create();
  /// Puts `bytes` where they belong.
  /// \error what the system said. What it says of bytes that it took before is
  ///     Sync's: all that this rank had may be there.
  absl::Status Write(size_t file, int64_t offset, const void* data,
                     int64_t bytes);
  /// Call once, when every rank has written all: flushes what this rank wrote
  /// to the disk.
  absl::Status Sync();
  /// First rank, when all ranks have flushed: gives the files their names.
  absl::Status GiveNames();

 private:
  std::string SavingName(size_t file) const;
  absl::Status WriteAll(size_t file, int64_t offset, const void* data,
                        int64_t bytes);
  /// Makes fd_ that of `file`.
  absl::Status Open(size_t file);
  absl::Status CloseOpen();

  const std::string directory_;
  const WeightFilesPlan& plan_;
  FileSystem& files_;
  size_t open_ = 0;  ///< That fd_ is of.
  int fd_ = -1;
  std::set<size_t> written_;  ///< By this rank.
  absl::Status late_;         ///< Of files that were closed.
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
