// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_BATCH_ROWS_H_
#define CROSSHATCH_NN_BATCH_ROWS_H_

/// \file
/// BatchRows: the rows of the global batch that a forward works on, if each
/// rank has some of them as plain tensors. Modules whose results depend on the
/// index of a row (Module::row_randomness) query it.
///
/// FullyShard and Replicate set it: when the outermost sharded module begins a
/// forward in which a module needs it, its ranks exchange over the side channel
/// the number of rows of their first inputs (the size of dim 0 of the first
/// input that has dims). The rows of rank 0 of the mesh come before those of
/// rank 1. A first input that is distributed over those ranks has all rows
/// already, and nothing is exchanged. A program that splits a batch in another
/// way (for example a dim of time over some of the ranks) opens a
/// BatchRowsScope around the forward instead.
///
/// A first input that is not a batch (for example positions [T]) is detected:
/// for each draw, the number of elements per row of the batch is recorded, and
/// at the end of the first forward with inputs of these sizes the ranks compare
/// it. If it differs, and rows of the first input have one size on all ranks,
/// the rank is poisoned with an error that names the module and two ranks.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

struct BatchRows {
  int64_t first = 0;  ///< Rows of the batch before those here.
  int64_t here = 0;   ///< Rows of this rank's forward.
  int64_t total = 0;  ///< Rows of the batch.
  /// The ranks that the batch is split over; a tensor that is distributed over
  /// them has all rows.
  std::optional<MeshLayout> over = std::nullopt;
};

/// By the module that draws: the number of elements of its batch dim per row of
/// the batch.
using RowWidths = std::map<std::string, int64_t>;

/// Counts the rows of the global batch over the forwards of a step, for the
/// modules of one tree (SetDropoutStep sets it on them). A forward is an
/// outermost call of a module of the tree, or a BatchRowsScope in place of one.
/// Its rows are counted once when it ends, on each rank, whichever modules ran
/// in it. Rows are counted by source, the module whose inputs or scope set
/// them, so that parts of a tree may have batches of other sizes.
/// \threadsafety the rank's thread only.
class RowCount {
 public:
  void ForwardBegins(const Module& module);
  /// Called last for the outermost forward, whose inputs are still available
  /// (Module::OutermostInputs).
  void ForwardEnds();

  /// Returns the rows of `source` in the forwards of this step that have ended.
  int64_t Before(const Module& source) const;
  /// Records the rows of the batch of `source` in the running forward; the
  /// largest number counts.
  void Note(const Module& source, int64_t total);
  /// Records that the running forward draws by row.
  void NoteDraw() { draws_ = true; }
  /// Returns the module of the running forward; null outside of forwards.
  const Module* outermost() const { return outermost_; }

 private:
  struct Rows {
    const Module* source;
    int64_t before = 0;
    int64_t running = -1;  ///< Of the running forward; -1: not recorded.
  };
  Rows& Of(const Module* source);

  absl::InlinedVector<Rows, 2> rows_;
  const Module* outermost_ = nullptr;
  int depth_ = 0;
  bool draws_ = false;
};

/// Sets the rows of a forward on this rank, during the lifetime of the scope.
/// The innermost of nested scopes has effect.
/// \checks first, here >= 0 and first + here <= total
/// \threadsafety the rank's thread only.
class BatchRowsScope {
 public:
  /// \param widths receives the numbers of NoteWidth, unless null. Outlives the
  ///     scope.
  /// \param source the module of the forward, which outlives the scope. Null:
  ///     the innermost one that runs, if any.
  explicit BatchRowsScope(BatchRows rows, RowWidths* widths = nullptr,
                          const Module* source = nullptr);
  ~BatchRowsScope();
  BatchRowsScope(const BatchRowsScope&) = delete;
  BatchRowsScope& operator=(const BatchRowsScope&) = delete;

  /// Returns the rows of the innermost scope; null if there is none.
  static const BatchRows* Current();
  /// Returns the source of the innermost scope; null if there is no scope, or
  /// if it was opened outside of modules.
  static const Module* CurrentSource();
  /// Records in the innermost scope that `module` draws for rows of `width`
  /// elements, separately for each call in a forward.
  static void NoteWidth(const std::string& module, int64_t width);

 private:
  const BatchRows rows_;
  RowWidths* const widths_;
  const Module* const source_;
  /// That of the source's tree; null in a recomputation.
  std::shared_ptr<RowCount> row_count_;
  const BatchRowsScope* const around_;
};

/// Returns the rows of a module's `input`, the size of dim 0; nullopt if it has
/// no dims or is undefined.
std::optional<int64_t> RowsOf(const Tensor& input);
/// Returns those of the first of `inputs` that has rows.
std::optional<int64_t> RowsOf(TensorSpan inputs);

/// Returns whether `tensor` is distributed over several ranks of `mesh`, so
/// that it has the rows of each.
bool IsDistributedOver(const Tensor& tensor, const MeshLayout& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_BATCH_ROWS_H_
