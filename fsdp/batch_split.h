// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_BATCH_SPLIT_H_
#define CROSSHATCH_FSDP_BATCH_SPLIT_H_

/// \file
/// BatchSplit: how the batch of a forward is split over data-parallel ranks.

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

/// Returns a hash of Module::row_randomness of all modules in the trees of
/// `modules`; nullopt if none has any, so that their forward needs no rows.
std::optional<uint64_t> RowRandomness(absl::Span<nn::Module* const> modules);

/// Determines which rows of the global batch the inputs of a forward are. Used
/// by the outermost forward of a tree.
class BatchSplit {
 public:
  /// Opens an nn::BatchRowsScope with the rows of `inputs` until End. All ranks
  /// of `mesh` must call it. They exchange their row counts over the side
  /// channel and number the rows in mesh order. If the input is distributed
  /// over the mesh, nothing is exchanged.
  ///
  /// Poisons the rank on an error of the side channel, or if two ranks differ
  /// in `randomness` or in their modules' earlier row counts; the error names
  /// the ranks. Checks that an input has rows.
  /// \param module the source of the rows, see nn::RowCount.
  /// \param module_name for messages.
  void Begin(const DeviceMesh& mesh, const nn::Module& module,
             const std::string& module_name, TensorSpan inputs,
             uint64_t randomness);

  /// Ends the forward. Does nothing if none has begun. All ranks must call it.
  /// When inputs have a combination of sizes for the first time, ranks also
  /// exchange the widths of rows that modules saw (nn::RowWidths). If these
  /// differ although the rows of the first input do not, the first input was
  /// not a batch: poisons the rank with an error that names two ranks.
  void End();

  /// Ends a forward that was abandoned, without any comparison.
  void Abandon();

 private:
  struct Running {
    DeviceMesh mesh;
    std::string module_name;
    std::string first_input;
    /// Hash of the inputs' sizes on all ranks; equal on all of them.
    size_t sizes = 0;
    bool compares = false;
  };

  std::optional<Running> running_;
  std::optional<nn::BatchRowsScope> scope_;
  nn::RowWidths widths_;
  absl::flat_hash_set<size_t> compared_;  ///< Values of Running::sizes.
};

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_BATCH_SPLIT_H_
