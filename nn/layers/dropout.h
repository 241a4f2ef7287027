// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_DROPOUT_H_
#define CROSSHATCH_NN_LAYERS_DROPOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "crosshatch/nn/batch_rows.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/ops/attention.h"

namespace crosshatch::nn {

/// Zeroes each element with probability p and scales the others by 1 / (1 - p)
/// in training (Module::set_training). Otherwise returns its input.
///
/// Which elements are dropped depends only on a seed, the module's full name, a
/// step and the element's index in the global batch. It is the same on every
/// mesh and after a resume as on one device with the whole batch.
/// - Call SetDropoutStep in each step.
/// - If data-parallel ranks have plain tensors, each its own rows, the rows of
/// rank
///   0 come first, then those of rank 1. FullyShard and Replicate set their
///   numbers (batch_rows.h), or a BatchRowsScope does. A plain tensor has the
///   rank's rows and is whole in all other dims.
/// - In the forwards of a step, rows are counted on: the rows of a second
/// forward,
///   for example of the next micro-batch, come after all rows of the first. So
///   micro-batches drop what one batch of all their rows would; they may also
///   have steps of their own. A forward is an outermost call of the module of
///   SetDropoutStep or of one below it. Its rows are counted on each rank, even
///   if the rank's forward did not run the Dropout (RowCount).
/// - If a forward calls one Dropout several times, each call drops other
/// elements.
///   With a batch_dim of nullopt, all calls of a step drop the same.
/// - Rows must have one size on all ranks and in all micro-batches of a step.
///   If batches are padded to different lengths, elements of different rows
///   could share a draw.
/// - A forward that is recomputed for its backward (activation_checkpoint.h)
///   drops the same elements again, whatever step and mode were set since.
class Dropout final : public Module {
 public:
  /// \param p in [0, 1], checked
  /// \param batch_dim the dim of inputs along which the batch lies; negative
  ///     ones count from the end. Its size is a multiple of this rank's rows:
  ///     [B * T, ...] works like [B, T, ...]. nullopt: inputs have no batch,
  ///     like a weight, and are the same on all ranks.
  explicit Dropout(double p, std::optional<int> batch_dim = 0);

  std::optional<uint64_t> row_randomness() const override;

  double p() const { return p_; }
  /// Returns AttentionOptions::dropout for the attention of queries `q` [B, T,
  /// heads, D]. It counts rows and checks as a forward does. If q is a plain
  /// tensor with some of the heads, set AttentionDropout::first_head.
  /// \checks that batch_dim is 0
  AttentionDropout ForAttention(const Tensor& q);

 protected:
  /// Checks in training that a step is set, and that the rows of the batch are
  /// known.
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  friend void SetDropoutStep(Module& root, uint64_t seed, uint64_t step);

  struct Draw {
    uint64_t key;
    uint64_t step;
    int64_t first_row;  ///< Along the input's batch dim.
  };

  /// The position of a call's rows in the draws of a step.
  struct RowPlace {
    size_t call;        ///< The number of earlier draws for these rows.
    int64_t first_row;  ///< Of the batch.
  };

  /// Sets seed and step for the following calls, with the module's current
  /// name.
  void SetStep(uint64_t seed, uint64_t step);
  /// Returns the draw of a call with `input`; counts its rows.
  Draw NextDraw(const Tensor& input);
  RowPlace PlaceOfRows(const BatchRows& rows);

  const double p_;
  const std::optional<int> batch_dim_;
  std::optional<Draw> step_;
  /// The latest step, for replays of captured calls.
  const std::shared_ptr<uint64_t> current_step_ = std::make_shared<uint64_t>(0);
  /// By the index of a call in its forward: the end of the rows drawn for in
  /// this step.
  absl::InlinedVector<int64_t, 1> drawn_;
  /// Whether other modules of its tree know their rows and this one does not.
  bool lacks_rows_ = false;
  /// Whether seed and step were compared with the ranks that share parameters.
  bool was_compared_ = false;
};

/// \name For all Dropout modules in the tree of `root`
/// @{
/// Sets the mode of Dropout modules only; Module::set_training sets all
/// modules.
void SetDropoutTraining(Module& root, bool training);
/// Sets seed and step. The first call on a model with distributed parameters
/// compares them with the ranks that share these, all of which call it; a
/// difference poisons the rank.
/// \param step a different number for each training step.
void SetDropoutStep(Module& root, uint64_t seed, uint64_t step);
/// @}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_DROPOUT_H_
