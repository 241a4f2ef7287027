// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LOSS_H_
#define CROSSHATCH_NN_LOSS_H_

/// \file
/// Losses with the options of PyTorch's cross_entropy, for logits in any layout
/// on meshes with any number of axes. If classes are split (tensor
/// parallelism), ranks exchange a few numbers for each row and never logits: no
/// rank holds a row of logits, in forward or backward.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

struct CrossEntropyLossOptions {
  using Reduction = CrossEntropyOptions::Reduction;

  /// kMean divides by the weights of the targets that are not ignored (class
  /// weights, or 1), for class probabilities by the number of rows. All rows of
  /// a distributed tensor count.
  Reduction reduction = Reduction::kMean;
  /// Rows with this target have no loss and no gradient. For class indices
  /// only.
  int64_t ignore_index = -100;
  /// The part of each target, in [0, 1], that is distributed evenly over all
  /// classes.
  double label_smoothing = 0;
  /// [V], floating point, constant; undefined: every class has weight 1. If the
  /// weights of the targets sum to 0, the mean is NaN, smoothed or not.
  Tensor class_weights = {};
  /// kMean: the data-parallel mesh over which the batch is split, if each rank
  /// has its own rows as plain tensors or as DTensors on other axes. The mean
  /// is then over the targets of all ranks (MeanOverBatch).
  std::optional<DeviceMesh> mean_over = std::nullopt;
};

/// Returns the cross entropy of logits and targets. Without smoothing, weights
/// and probabilities it is CrossEntropy (tensor/ops). Checks that sizes fit,
/// that weights and probabilities require no gradient, and that `mean_over`
/// comes with kMean. A communication error poisons the rank.
/// \param logits [..., V], floating point; 16-bit ones are computed in float32
/// \param targets [...], class indices (i32, i64, u16), or [..., V], the
///     probabilities of the classes, floating point and constant. Plain targets
///     for distributed logits are those of all rows, equal on all ranks of the
///     logits' mesh.
/// \returns float32 (float64 for float64): no dims; [...] for kNone
Tensor CrossEntropyLoss(const Tensor& logits, const Tensor& targets,
                        const CrossEntropyLossOptions& options = {});

/// Returns sum * ranks / (sum of the ranks' counts), this rank's loss for
/// Backward if the batch is split over the data-parallel mesh `batch`. With it,
/// FullyShard's averaged gradients are those of one rank with the whole batch
/// ("Losses and gradients" in docs/training.md):
///
///     const Tensor squares = Sum(Square(prediction - target));
///     const Tensor loss = MeanOverBatch(squares, rows.size(), data);
///
/// All ranks of `batch` call it, also those without rows. A communication error
/// poisons the rank. It is computed in float32, or in float64 if `sum` or
/// `count` is of that.
/// \param sum of the losses of this rank's rows or targets, one element, of any
///     floating-point dtype.
/// \param count what the mean is over: rows, targets or their weights, of any
///     dtype that is the same on all ranks.
/// \returns a tensor of the dtype of `sum`.
Tensor MeanOverBatch(const Tensor& sum, const Tensor& count,
                     const DeviceMesh& batch);
Tensor MeanOverBatch(const Tensor& sum, double count, const DeviceMesh& batch);

/// Returns the mean of the ranks' `loss`, the loss of the batch, on every rank
/// of `mesh`, outside of the graph, to print it. `loss` is a tensor of one
/// element, plain or distributed over other axes. All ranks of the mesh call
/// it; it waits for the current stream. 0 in a dry run.
/// \error as SumOverMesh (mesh/mesh_collectives.h).
absl::StatusOr<double> MeanOverAxis(const Tensor& loss, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LOSS_H_
