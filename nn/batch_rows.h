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
  int64_t here = 0;   ///< Rows that this rank's forward works on.
  int64_t total = 0;  ///< Rows of the batch.
  /// The ranks that the batch is split over; a tensor that is distributed over
  /// them has all rows.
  std::optional<MeshLayout> over = std::nullopt;
};

/// By what is drawn for: elements of its batch dim that a row of the batch is.
using RowWidths = std::map<std::string, int64_t>;

/// Counts the rows of the global batch over the forwards of a step, for the
/// modules of one tree (SetDropoutStep sets it on them). A forward is a call of
/// a module of the tree that no other one of them runs, or a BatchRowsScope
/// that stands for one. It counts its rows once when it ends, on each rank,
/// whichever modules ran in it. Rows are counted by their source: the module
/// whose inputs or scope they follow from, so that parts of a tree may have
/// batches of other sizes. \threadsafety the rank's thread only.
class RowCount final : public ForwardWatcher {
 public:
  /// Returns that of the tree of `module`; null if it has none.
  static RowCount* Of(const Module& module);

  void ForwardBegins(const Module& module) override;
  void ForwardEnds() override;

  /// Returns the rows of `source` in the forwards of this step that have ended.
  int64_t Before(const Module& source) const;
  /// Notes the rows of the batch of `source` in the forward that runs; the
  /// largest number counts.
  void Note(const Module& source, int64_t total);
  /// Notes that the forward that runs draws by row.
  void NoteDraw() { draws_ = true; }
  /// Returns the module that the forward that runs is of; null outside of one.
  const Module* outermost() const { return outermost_; }

 private:
  struct Rows {
    const Module* source;
    int64_t before = 0;
    int64_t running = -1;  ///< Of the forward that runs; -1: not noted.
  };
  Rows& Of(const Module* source);

  absl::InlinedVector<Rows, 2> rows_;
  const Module* outermost_ = nullptr;
  int depth_ = 0;
  bool draws_ = false;
};

/// What a forward on this rank works on, while the scope lives; scopes nest,
/// and the innermost holds.
/// \checks first, here >= 0 and first + here <= total
/// \threadsafety the rank's thread only.
class BatchRowsScope {
 public:
  /// \param widths where NoteWidth notes; null for nowhere. Outlives the scope.
  /// \param source the module whose forward the rows are of; outlives the
  /// scope.
  ///     Null: the innermost one that runs, if any.
  explicit BatchRowsScope(BatchRows rows, RowWidths* widths = nullptr,
                          const Module* source = nullptr);
  ~BatchRowsScope();
  BatchRowsScope(const BatchRowsScope&) = delete;
  BatchRowsScope& operator=(const BatchRowsScope&) = delete;

  /// Of the innermost scope; null where there is none.
  static const BatchRows* Current();
  /// Returns the source of the rows of the innermost scope; null where there is
  /// no scope, or it stands outside of modules.
  static const Module* CurrentSource();
  /// Notes in the innermost scope that `module` draws for rows which are so
  /// wide; of several times in a forward each by itself.
  static void NoteWidth(const std::string& module, int64_t width);

 private:
  const BatchRows rows_;
  RowWidths* const widths_;
  const Module* const source_;
  /// That of the source's tree; null in a recomputation.
  std::shared_ptr<ForwardWatcher> watcher_;
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
