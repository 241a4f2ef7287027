// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_INDEX_H_
#define CROSSHATCH_CHECKPOINT_INDEX_H_

/// \file
/// The index of a checkpoint, as a value: which tensors and small values it
/// holds, and which file has which part of each tensor. docs/checkpoints.md has
/// the format.
///
/// A tensor is cut along each of its dims; the cells of the grid that results
/// lie in files, each whole in one. A grid has neither gaps nor overlaps, so an
/// index that parses covers every tensor exactly once.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {

/// The name of the file in a checkpoint's directory that holds its index.
inline constexpr char kIndexFile[] = "checkpoint.json";

/// The name of data file `number` of `count`, from 0:
/// "state-00001-of-00004.safetensors".
std::string DataFileName(int number, int count);

/// Whether a checkpoint's directory has files of that name: the index, the data
/// files, and the reports of ranks (save_job.h). No others are ever replaced or
/// removed.
bool IsCheckpointFile(const std::string& name);

/// The name of the report of a rank, a file that is there while a checkpoint is
/// written.
std::string ReportFileName(int rank);

struct IndexedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape sizes;
  /// For each dim 0 = c[0] < c[1] < ... < c[n] = its size; just 0 for a dim of
  /// no elements.
  std::vector<std::vector<int64_t>> cuts;
  /// For each cell, in row-major order, the index of its file.
  std::vector<int> files;
  /// content_hash.h; none in an index whose checkpoint was not hashed (yet).
  std::optional<uint64_t> hash;

  int num_cells() const { return static_cast<int>(files.size()); }
  int64_t bytes() const { return NumElements(sizes) * SizeOf(dtype); }
  /// The part of the tensor that `cell` is.
  Box CellBox(int cell) const;
  /// What the cell is called in its file: the tensor's name where it is all of
  /// it, else followed by the box: "w[0:2, 3:5]".
  std::string CellName(int cell) const;
  /// The cells that hold elements of `box`, ascending.
  /// \pre the box lies in the tensor
  std::vector<int> CellsMeeting(const Box& box) const;

  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

using SmallValue = std::variant<int64_t, double, std::string>;

struct CheckpointIndex {
  /// How many the job that wrote it had.
  int ranks = 1;
  /// Names of files in the directory, each of at least one cell.
  std::vector<std::string> files;
  std::map<std::string, SmallValue> values;
  /// In the order of their names.
  std::vector<IndexedTensor> tensors;

  /// Null if there is none.
  const IndexedTensor* Find(const std::string& name) const;
  /// Names all tensors and values, in order.
  std::vector<std::string> Names() const;
  /// What all tensors take together.
  int64_t bytes() const;
};

/// Returns the text of the file: one line for each tensor and value, and for a
/// hash of all lines before it.
/// \error kInvalidArgument naming a tensor or value whose name is not UTF-8.
absl::StatusOr<std::string> FormatIndex(const CheckpointIndex& index);

/// Reads what FormatIndex wrote, and checks all of it: what is returned is of a
/// whole grid for each tensor, in files with names of this format, and has the
/// hash that the text states, if it states one.
/// \param what names the text in errors
/// \error kDataLoss naming the tensor or value, and what is wrong with it;
///     kUnimplemented for a version that this library does not know.
absl::StatusOr<CheckpointIndex> ParseIndex(const std::string& text,
                                           const std::string& what);

/// The index in `dir`.
/// \error kNotFound where `dir` is no checkpoint; as ParseIndex.
absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& dir);

}  // namespace crosshatch::checkpoint

#endif  // CROSSHATCH_CHECKPOINT_INDEX_H_
