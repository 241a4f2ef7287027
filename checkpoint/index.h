// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_INDEX_H_
#define CROSSHATCH_CHECKPOINT_INDEX_H_

/// \file
/// CheckpointIndex: the index of a checkpoint, as a value: its tensors and
/// small values, and the file of each part of a tensor. DataFiles: the files
/// that it names. docs/checkpoints.md describes the format.
///
/// A tensor is cut along each of its dims. Each cell of the resulting grid is
/// in one file. A grid has neither gaps nor overlaps, so an index that parses
/// covers every tensor exactly once.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

inline constexpr char kIndexFile[] = "checkpoint.json";

/// Returns the name of data file `number` (from 0) of `count`:
/// "state-00001-of-00004.safetensors".
std::string DataFileName(int number, int count);

/// Returns whether `name` is a name of a checkpoint's files: the index, data
/// files and reports of ranks (save_job.h). No other files are ever replaced or
/// removed.
bool IsCheckpointFile(const std::string& name);

/// Returns the name of a rank's report, a file that exists while a checkpoint
/// is written.
std::string ReportFileName(int rank);

struct IndexedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;
  /// For each dim 0 = c[0] < c[1] < ... < c[n] = its size; only 0 for a dim of
  /// size 0.
  std::vector<std::vector<int64_t>> cuts;
  /// The index of the file of each cell, in row-major order.
  std::vector<int> files;
  /// See content_hash.h. Unset if the checkpoint was not hashed (yet).
  std::optional<uint64_t> hash;

  int num_cells() const { return static_cast<int>(files.size()); }
  int64_t bytes() const { return NumElements(sizes) * SizeOf(dtype); }
  /// Returns the box of `cell` in the tensor.
  Box CellBox(int cell) const;
  /// Returns the name of `cell` in its file: the tensor's name, followed by the
  /// box unless that is the whole tensor: "w[0:2, 3:5]".
  std::string CellName(int cell) const;
  /// Returns the cells that intersect `box`, ascending.
  /// \pre the box is within the tensor.
  std::vector<int> CellsIntersecting(const Box& box) const;

  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

using SmallValue = std::variant<int64_t, double, std::string>;

/// Returns e.g. "3", "3.0" or "\"text\"", on one line.
std::string ValueText(const SmallValue& value);

/// The content of an index.
struct CheckpointIndex {
  /// Number of ranks of the job that wrote it.
  int ranks = 1;
  /// Names of files in the directory. Each has at least one cell.
  std::vector<std::string> files;
  std::map<std::string, SmallValue> values;
  /// Sorted by name.
  std::vector<IndexedTensor> tensors;

  /// Returns the tensor `name`; null if there is none.
  const IndexedTensor* Find(const std::string& name) const;
  /// Returns the sorted names of all tensors and values.
  std::vector<std::string> Names() const;
  /// Returns the size of all tensors in bytes.
  int64_t bytes() const;
};

/// Returns the text of the index file: one line per tensor and value, and a
/// line with a hash of all lines before it.
/// \error kInvalidArgument naming a tensor or value whose name is not UTF-8.
absl::StatusOr<std::string> FormatIndex(const CheckpointIndex& index);

/// Parses and validates the result of FormatIndex. The returned index has a
/// complete grid for each tensor and file names of this format, and it matches
/// the hash in the text, if there is one.
/// \param what names the text in errors.
/// \error kDataLoss naming the tensor or value and the problem; kUnimplemented
///     for a version that this library does not support.
absl::StatusOr<CheckpointIndex> ParseIndex(const std::string& text,
                                           const std::string& what);

/// Reads the index in `dir`.
/// \error kNotFound if `dir` is not a checkpoint; as ParseIndex.
absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& dir);

/// The part of a cell within a box of the tensor.
struct CellPart {
  int cell = 0;
  /// Relative to the global tensor.
  Box box;
};

/// Returns the parts of cells that make up `box` of `tensor`, each element
/// once.
std::vector<CellPart> PartsOf(const IndexedTensor& tensor, const Box& box);

/// The data files of a checkpoint, opened on first use.
class DataFiles {
 public:
  /// \param index must outlive this object.
  DataFiles(std::string dir, const CheckpointIndex& index)
      : dir_(std::move(dir)), index_(index), files_(index.files.size()) {}

  /// Opens the files that hold `parts` of `tensor`, and checks that they have
  /// them with the right dtype and sizes.
  /// \error kDataLoss naming the file, also if it is missing.
  absl::Status Open(const IndexedTensor& tensor,
                    absl::Span<const CellPart> parts);
  int opened() const { return opened_; }

  /// Copies `parts`, which make up `box`, to `out`, dense and converted to
  /// `dtype`.
  /// \pre Open was called for them.
  /// \returns the number of bytes that were copied from the files.
  /// \error as SafetensorsFile::Read.
  absl::StatusOr<int64_t> Read(const IndexedTensor& tensor,
                               absl::Span<const CellPart> parts, const Box& box,
                               DType dtype, void* out) const;
  /// A hash of stored elements.
  struct Hashed {
    uint64_t hash = 0;
    int64_t bytes = 0;  ///< Number of bytes hashed.
  };
  /// Hashes `parts`.
  /// \pre as Read
  /// \error as Read
  absl::StatusOr<Hashed> Hash(const IndexedTensor& tensor,
                              absl::Span<const CellPart> parts) const;

 private:
  struct Stored {
    const SafetensorsFile* file;
    int index;
  };
  Stored Find(const IndexedTensor& tensor, int cell) const;

  const std::string dir_;
  const CheckpointIndex& index_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  int opened_ = 0;
};

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_INDEX_H_
