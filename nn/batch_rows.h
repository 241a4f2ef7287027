// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_BATCH_ROWS_H_
#define CROSSHATCH_NN_BATCH_ROWS_H_

/// \file
/// BatchRows: which rows of the global batch a forward works on, where each
/// rank is given a part of it as plain tensors. Modules whose results follow
/// from where a row lies (Module::row_randomness) ask for it.
///
/// FullyShard and Replicate say it by themselves: when the outermost sharded
/// module begins a forward in which something asks, its ranks tell each other
/// over the side channel how many rows their first inputs have (the size of dim
/// 0 of the first input that has dims), and the rows of rank 0 of the mesh come
/// before those of rank 1. A first input that is distributed over those ranks
/// has all rows already, and nothing is told. Who splits a batch in another way
/// (a dim of time over a part of the ranks, say) stands a BatchRowsScope around
/// the forward, which holds instead.
///
/// A first input that is no batch (positions [T], say) is noticed: what a row
/// of the batch is of each thing that is drawn for is noted, and at the end of
/// the first forward with inputs of such sizes the ranks compare it. Where it
/// differs, and rows of the first input are of one size on all ranks, the rank
/// is poisoned with an error that names the module and two ranks.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "crosshatch/mesh/mesh_layout.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

struct BatchRows {
  int64_t first = 0;  ///< Rows of the batch before those here.
  int64_t here = 0;   ///< Rows that this rank's forward works on.
  int64_t total = 0;  ///< Rows of the batch.
  /// The ranks that the batch is split over; a tensor that is distributed over
  /// them has all rows.
  std::optional<MeshLayout> over = std::nullopt;
};

/// By what is drawn for: elements of its batch dim that a row of the batch is.
using RowWidths = std::map<std::string, int64_t>;

/// What a forward on this rank works on, while the scope lives; scopes nest,
/// and the innermost holds.
/// \checks first, here >= 0 and first + here <= total
/// \threadsafety the rank's thread only.
class BatchRowsScope {
 public:
  /// \param widths where NoteWidth notes; null for nowhere. Outlives the scope.
  explicit BatchRowsScope(BatchRows rows, RowWidths* widths = nullptr);
  ~BatchRowsScope();
  BatchRowsScope(const BatchRowsScope&) = delete;
  BatchRowsScope& operator=(const BatchRowsScope&) = delete;

  /// Of the innermost scope; null where there is none.
  static const BatchRows* Current();
  /// Notes in the innermost scope that `module` draws for rows which are so
  /// wide; of several times in a forward each by itself.
  static void NoteWidth(const std::string& module, int64_t width);

 private:
  const BatchRows rows_;
  RowWidths* const widths_;
  const BatchRowsScope* const around_;
};

/// The rows that `input`, a module's, has: the size of dim 0; nullopt without
/// dims, or if it is undefined.
std::optional<int64_t> RowsOf(const Tensor& input);
/// As above for the first of `inputs` that has rows.
std::optional<int64_t> RowsOf(TensorSpan inputs);

/// Whether `tensor` is distributed over several of the ranks of `mesh`, so that
/// it has what each of them has.
bool IsSpreadOver(const Tensor& tensor, const MeshLayout& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_BATCH_ROWS_H_
