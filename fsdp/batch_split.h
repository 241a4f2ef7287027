// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_BATCH_SPLIT_H_
#define CROSSHATCH_FSDP_BATCH_SPLIT_H_

/// \file
/// How the batch of a forward is split over the data-parallel ranks.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::fsdp {

/// Of all Module::row_randomness in the trees of `modules`, one number; nullopt
/// where there is none, so that their forward asks for no rows.
std::optional<uint64_t> RowRandomness(absl::Span<nn::Module* const> modules);

/// What the ranks of a tree know of the batch of a forward, which its outermost
/// module begins and ends.
class BatchSplit {
 public:
  /// Says which rows of the batch `inputs` have (nn::BatchRowsScope), until
  /// End. All ranks of `mesh` call it, and tell each other over the side
  /// channel how many they have, in the order of the mesh; where the input is
  /// distributed over the mesh, nothing is told. Poisons the rank with an error
  /// of the side channel, or one that names two ranks whose `randomness`
  /// differs, or its modules' counts of rows. Checks that an input has rows.
  /// \param module the same for all forwards of what the inputs are of
  /// \param module_name for messages
  void Begin(const DeviceMesh& mesh, const nn::Module& module,
             const std::string& module_name, TensorSpan inputs,
             uint64_t randomness);

  /// Of a forward that has begun, all ranks again; else it does nothing. The
  /// first time that inputs have such sizes on all ranks, these tell each other
  /// how wide rows were (nn::RowWidths). Poisons the rank with an error that
  /// names two of them which differ, where rows of the first input do not: then
  /// it was no batch.
  void End();

  /// In place of End, where the forward was left: compares nothing.
  void Abandon();

 private:
  struct Running {
    DeviceMesh mesh;
    std::string module_name;
    std::string first_input;
    /// Of all ranks' inputs; the same on all of them.
    size_t sizes = 0;
    bool compares = false;
  };

  std::optional<Running> running_;
  std::optional<nn::BatchRowsScope> scope_;
  nn::RowWidths widths_;
  absl::flat_hash_set<size_t> compared_;  ///< Running::sizes.
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_BATCH_SPLIT_H_
