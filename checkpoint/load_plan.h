// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_CHECKPOINT_LOAD_PLAN_H_
#define CROSSHATCH_CHECKPOINT_LOAD_PLAN_H_

/// \file
/// What one rank reads of a checkpoint: the intervals of the files' cells that
/// its parts of tensors are made of.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/dtensor/box.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::checkpoint {

/// A part of a cell that meets a part of the tensor.
struct CellPart {
  int cell = 0;
  /// In the global tensor.
  Box box;
};

/// The parts of cells that `box` of `tensor` is made of: each element once.
std::vector<CellPart> PartsOf(const IndexedTensor& tensor, const Box& box);

/// The data files of a checkpoint, opened when first asked for.
class DataFiles {
 public:
  /// \param index outlives this
  DataFiles(std::string dir, const CheckpointIndex& index)
      : dir_(std::move(dir)), index_(index), files_(index.files.size()) {}

  /// Opens the files that hold `parts` of `tensor`, and checks that they hold
  /// them, in their dtype and sizes.
  /// \error kDataLoss naming the file, also where it is missing
  absl::Status Open(const IndexedTensor& tensor,
                    absl::Span<const CellPart> parts);
  int opened() const { return opened_; }

  /// Copies `parts`, which make up `box`, converted to `dtype`, to `out`,
  /// dense.
  /// \pre Open was called for them
  /// \returns the bytes of the files that were copied, as they were counted
  /// \error as SafetensorsFile::Read
  absl::StatusOr<int64_t> Read(const IndexedTensor& tensor,
                               absl::Span<const CellPart> parts, const Box& box,
                               DType dtype, void* out) const;
  /// What was hashed, as it is stored.
  struct Hashed {
    uint64_t hash = 0;
    int64_t bytes = 0;  ///< Of the files, as they were counted.
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
