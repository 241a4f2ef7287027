// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
#define CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_

/// \file
/// The safetensors files of a directory. OpenWeights reads those of a Hugging
/// Face directory, one model.safetensors or several with an index.
/// WeightFilesPlan and WeightFiles write any: one rank all of a file, or each
/// rank its intervals.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/checkpoint/safetensors.h"

namespace crosshatch::checkpoint {

struct StoredTensor {
  std::shared_ptr<const SafetensorsFile> file;
  int index = 0;

  const TensorInfo& info() const {
    return file->tensors()[static_cast<size_t>(index)];
  }
};

/// Tensors by name.
using StoredTensors = std::map<std::string, StoredTensor>;

/// Opens `dir`/model.safetensors or, if it does not exist, the files that
/// `dir`/model.safetensors.index.json names. Reads headers only.
/// \error kNotFound if neither exists; kDataLoss, naming file and tensor, if a
///     file is invalid or the index and files disagree.
absl::StatusOr<StoredTensors> OpenWeights(const std::string& dir);

/// The layout of the files. A function of its inputs, which the ranks that
/// write together have compared.
class WeightFilesPlan {
 public:
  struct File {
    std::string name;
    /// The file up to the elements (SafetensorsStart).
    std::string start;
    std::vector<TensorInfo> tensors;
    int64_t bytes() const;  ///< Size of the file.
  };
  /// The place of a tensor.
  struct Place {
    size_t file = 0;
    int64_t offset = 0;  ///< Of the first element, in bytes.
  };

  /// Creates a plan.
  /// \param most_bytes maximal bytes of tensors per file; a larger tensor has a
  ///     file of its own. 0: one file for all.
  /// \error as SafetensorsStart.
  static absl::StatusOr<WeightFilesPlan> Create(std::vector<TensorInfo> tensors,
                                                int64_t most_bytes);
  /// Creates the plan of a single file.
  /// \error as SafetensorsStart.
  static absl::StatusOr<WeightFilesPlan> OfOneFile(
      const std::string& name, std::vector<TensorInfo> tensors);

  const std::vector<File>& files() const { return files_; }
  /// Returns the place of `tensor`.
  /// \pre `tensor` is in the plan; checked.
  Place PlaceOf(const std::string& tensor) const;
  /// Returns the text of model.safetensors.index.json; empty for a single file.
  std::string IndexText() const;

 private:
  absl::Status SetPlaces();

  std::vector<File> files_;
  std::map<std::string, Place> places_;
};

/// The files during a save, on one rank. They are called "<name>.saving" until
/// all are complete.
class WeightFiles {
 public:
  /// \param directory no other program writes to it.
  /// \param files must outlive this object.
  WeightFiles(std::string directory, WeightFilesPlan plan, FileSystem& files)
      : directory_(std::move(directory)),
        plan_(std::move(plan)),
        files_(files) {}
  ~WeightFiles();
  WeightFiles(const WeightFiles&) = delete;
  WeightFiles& operator=(const WeightFiles&) = delete;

  /// First rank, before any rank writes: creates the files with their full
  /// sizes and writes their starts.
  absl::Status Create();
  /// Writes `bytes` bytes at `offset` of `file`.
  /// \error of the system. Errors of bytes that it accepted before are Sync's,
  ///     though all bytes of this rank may be in the files.
  absl::Status Write(size_t file, int64_t offset, const void* data,
                     int64_t bytes);
  /// Writes the next bytes of all elements, in the order of the plan: for one
  /// rank that writes everything.
  absl::Status Append(const void* data, int64_t bytes);
  /// Returns the number of bytes appended.
  int64_t appended() const { return appended_; }
  /// Flushes the writes of this rank to the disk. Call once, when every rank
  /// has written everything.
  absl::Status Sync();
  /// First rank, after all ranks have flushed: renames the files to their
  /// names.
  absl::Status GiveNames();

 private:
  std::string SavingName(size_t file) const;
  absl::Status WriteAll(size_t file, int64_t offset, const void* data,
                        int64_t bytes);
  absl::Status Open(size_t file);
  absl::Status CloseOpen();

  const std::string directory_;
  const WeightFilesPlan plan_;
  FileSystem& files_;
  size_t open_ = 0;  ///< The file of fd_.
  int fd_ = -1;
  size_t append_file_ = 0;    ///< Append: the next file,
  int64_t in_file_ = 0;       ///< the bytes of elements in it,
  int64_t appended_ = 0;      ///< and in all.
  std::set<size_t> written_;  ///< Files that this rank wrote to.
  absl::Status late_;         ///< The error of a closed file.
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_WEIGHT_FILES_H_
