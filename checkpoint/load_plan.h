// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_LOAD_PLAN_H_
#define CROSSHATCH_CHECKPOINT_LOAD_PLAN_H_

/// \file
/// What one rank reads of a checkpoint: the parts of cells that intersect its
/// shards.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

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

#endif  // CROSSHATCH_CHECKPOINT_LOAD_PLAN_H_
