// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_DROPOUT_H_
#define CROSSHATCH_NN_LAYERS_DROPOUT_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/attention.h"

namespace crosshatch::nn {

/// While training (Module::set_training): zeroes each element with probability
/// p and scales the others by 1 / (1 - p). Else its input.
///
/// What is dropped follows from a seed, the module's full name, a step and the
/// element's index in the global batch, and from nothing else: it is what one
/// device would drop that had the whole batch, on every mesh and after a
/// resume.
/// - Somebody has to say which step it is: SetDropoutStep.
/// - Where data-parallel ranks have plain tensors, each its own rows, rows are
///   counted through: those of rank 0, then those of rank 1, however many each
///   has. FullyShard and Replicate tell (batch_rows.h says how), or else a
///   BatchRowsScope does. A plain tensor is the rank's rows and whole in all
///   other dims. A distributed one is what it says it is.
/// - The forwards of a step count on: the rows of a second forward, of a
///   micro-batch whose gradients accumulate, come after all rows of the first
///   one. So several micro-batches drop what one batch of all their rows would,
///   and may as well have steps of their own. A forward is a call of the module
///   that SetDropoutStep was given or of one below it, with all that it runs in
///   turn. It counts its rows on each rank, whether the rank's forward ran the
///   Dropout or not (batch_rows.h, RowCount).
/// - If a forward calls one Dropout several times, each call drops other
///   elements: calls have indices, which micro-batches share. With a batch_dim
///   of nullopt, all calls of a step drop the same.
/// - Rows are of one size on all ranks and in all micro-batches of a step: of
///   batches that are padded to other lengths, elements of different rows could
///   share a draw.
/// - A forward that is computed again for its backward (checkpoint.h) drops
///   what it dropped, whatever step was said, and whether it trains was
///   changed, since.
class Dropout final : public Module {
 public:
  /// \param p in [0, 1], checked
  /// \param batch_dim the dim of inputs along which the batch lies; negative
  ///     ones count from the end. Its size is a multiple of the batch's rows
  ///     here: [B * T, ...] is as good as [B, T, ...]. nullopt: inputs are of
  ///     no batch (a weight, say), the same on all ranks.
  explicit Dropout(double p, std::optional<int> batch_dim = 0);

  const char* type_name() const override { return "Dropout"; }
  std::optional<uint64_t> row_randomness() const override;

  double p() const { return p_; }
  /// What attention is to drop of the probabilities of `q`, [B, T, heads, D] of
  /// rows as a forward's input: AttentionOptions::dropout. Stands for a
  /// forward, of which it counts the rows, within the forward of the module
  /// that calls it; checks as a forward does. Where q is a plain tensor of some
  /// of the heads, the caller adds which (AttentionDropout::first_head).
  /// \checks that batch_dim is 0
  AttentionDropout ForAttention(const Tensor& q);

 protected:
  /// Checks, while training, that there is a step, and that it is known where
  /// the rows lie.
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  friend void SetDropoutStep(Module& root, uint64_t seed, uint64_t step);

  struct Draw {
    uint64_t key;
    uint64_t step;
    int64_t first_row;  ///< Along the input's batch dim.
  };

  /// Where the rows of a call are in the draws of a step.
  struct RowPlace {
    size_t call;        ///< How often these rows were drawn for before.
    int64_t first_row;  ///< Of the batch.
  };

  /// For the calls from now on; the module's name is that of now.
  void SetStep(uint64_t seed, uint64_t step);
  /// Returns the draw of a call with `input`; counts its rows.
  Draw NextDraw(const Tensor& input);
  RowPlace PlaceOfRows(const BatchRows& rows);

  const double p_;
  const std::optional<int> batch_dim_;
  std::optional<Draw> step_;
  /// By the index of a call in its forward, the end of the rows that it has
  /// drawn for in this step.
  absl::InlinedVector<int64_t, 1> drawn_;
  /// Others of its tree are told of their rows, and this one is not.
  bool lacks_rows_ = false;
  /// With the ranks that share parameters of its tree.
  bool was_compared_ = false;
};

/// \name Of all Dropout modules in the tree of `root`
/// @{
/// Module::set_training says it to all modules.
void SetDropoutTraining(Module& root, bool training);
/// The first call on a model with distributed parameters compares seed and step
/// with the ranks that share these, all of which make it; a difference poisons
/// the rank.
/// \param step a number for each training step
void SetDropoutStep(Module& root, uint64_t seed, uint64_t step);
/// @}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_DROPOUT_H_
