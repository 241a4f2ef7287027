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
  /// kMean: the batch is split over this mesh besides, each rank having rows of
  /// its own as plain tensors, or as DTensors on the other axes: the axis of
  /// FullyShard. The loss is then this rank's share of the mean over the rows
  /// of all, times the ranks: its mean over them is the mean of the whole
  /// batch, and so are gradients that FullyShard divides by the ranks, however
  /// many rows each has. The weights are summed by one collective.
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

/// The mean of the values that the ranks of `mesh` have of `loss`, a tensor of
/// one element, plain or distributed over other axes; on every rank, outside of
/// the graph: what a program prints. Called by all ranks of the mesh.
/// \error as Item (dtensor/item.h).
absl::StatusOr<double> MeanOverAxis(const Tensor& loss, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LOSS_H_
