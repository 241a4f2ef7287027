// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LOSS_H_
#define CROSSHATCH_NN_LOSS_H_

/// \file
/// Losses, with all that PyTorch's cross_entropy knows, of logits that may be
/// split in any way on meshes of any number of axes. Where classes are split
/// (tensor parallelism) the ranks exchange a few numbers for each row and never
/// logits: no rank holds a row of these, in forward or in backward.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

struct CrossEntropyLossOptions {
  using Reduction = CrossEntropyOptions::Reduction;

  /// kMean is over the weights of the targets that are not ignored (class
  /// weights; 1 without), of class probabilities over the rows. All rows of a
  /// distributed tensor count, wherever they lie.
  Reduction reduction = Reduction::kMean;
  /// Rows with this target have no loss and no gradient. Of class indices only.
  int64_t ignore_index = -100;
  /// In [0, 1]: so much of each target is spread over all classes alike.
  double label_smoothing = 0;
  /// [V], floating point, constant; undefined: every class weighs 1. If the
  /// weights of the targets sum to 0, the mean is NaN, smoothed or not.
  Tensor class_weights = {};
  /// kMean: the data-parallel mesh, over which the batch is split besides: each
  /// rank has rows of its own as plain tensors, or as DTensors on other axes.
  /// The mean is then over the targets of all ranks, however many each has, as
  /// MeanOverBatch takes it.
  std::optional<DeviceMesh> mean_over = std::nullopt;
};

/// The cross entropy of logits and targets, as CrossEntropy (tensor/ops), which
/// it is without smoothing, weights and probabilities.
/// \param logits [..., V], floating point; 16-bit ones are computed in float32
/// \param targets [...], class indices (i32, i64, u16), or [..., V], the
///     probabilities of the classes, floating point and constant. Plain ones
///     among distributed logits are those of all rows, equal on all ranks of
///     the logits' mesh.
/// \returns float32 (float64 for float64): no dims; [...] for kNone.
/// Checks that sizes fit, that weights and probabilities require no gradient,
/// and that `mean_over` comes with kMean. A communication error poisons the
/// rank.
Tensor CrossEntropyLoss(const Tensor& logits, const Tensor& targets,
                        const CrossEntropyLossOptions& options = {});

/// Returns this rank's loss for Backward, where the batch is split over the
/// data-parallel mesh `batch`: the mean of the ranks' losses is the sum of the
/// ranks' `sum` divided by that of their `count`, and with FullyShard, which
/// averages gradients over the ranks, gradients are those of one rank with the
/// whole batch ("Losses and gradients" in docs/training.md):
///
///     const Tensor squares = Sum(Square(prediction - target));
///     const Tensor loss = MeanOverBatch(squares, rows.size(), data);
///
/// Called by all ranks of `batch`, also by those without rows. A communication
/// error poisons the rank.
/// It is computed in float32, or in float64 if `sum` or `count` is of that.
/// \param sum of the losses of this rank's rows or targets, one element, of any
///     floating-point dtype.
/// \param count what the mean is over: rows, targets or their weights, of any
///     dtype that is the same on all ranks.
/// \returns sum * ranks / (the sum of the counts), of the dtype of `sum`.
Tensor MeanOverBatch(const Tensor& sum, const Tensor& count,
                     const DeviceMesh& batch);
Tensor MeanOverBatch(const Tensor& sum, double count, const DeviceMesh& batch);

/// Returns the mean of the ranks' `loss`, the loss of the batch, on every rank
/// of `mesh`, outside of the graph: what a program prints. `loss` is a tensor
/// of one element, plain or distributed over other axes. Called by all ranks of
/// the mesh; waits for the current stream. 0 on a dry run.
/// \error as SumOverMesh (mesh/sum_over_mesh.h).
absl::StatusOr<double> MeanOverAxis(const Tensor& loss, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LOSS_H_
