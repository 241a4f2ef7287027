// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_FUNCTIONAL_COLLECTIVES_H_
#define CROSSHATCH_DTENSOR_FUNCTIONAL_COLLECTIVES_H_

/// \file
/// Differentiable collectives of plain tensors over one axis of a mesh
/// (docs/point_to_point.md):
///
///     CH_ASSIGN_OR_RETURN(const DeviceMesh ring, mesh.Slice("context"));
///     TensorList next = Shift({keys, values}, ring, 1);
///     Tensor whole = AllGather(x, ring, /*dim=*/1);
///     Tensor sum = AllReduce(x, ring);
///
/// `axis` is a mesh of one axis, such as a slice. All ranks of it make the same
/// calls in the same order, with inputs that require gradients alike. Tensors
/// are plain; ToLocal (dtensor.h) gives the shard of a distributed one.
///
/// Gradients are those of the sum of all ranks' losses: a rank's gradient is
/// that of what it computes from the result, and an input's gradient adds up
/// what all ranks compute from it. If all ranks compute the same loss from a
/// result, each contributes it, and gradients are `size` times as large. Where
/// a loss is replicated, use distributed tensors: FromLocal, Redistribute, and
/// ToLocal with a gradient of Replicate.
///
/// Collectives are issued to the current stream. An error, such as other
/// shapes, another dtype or another `k` on another rank, poisons all ranks of
/// the axis and names both sides. Gradients have gradients.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct ShiftOptions {
  /// Whether the axis is a ring: the last rank's neighbour is the first. If
  /// not, ranks whose source is outside of the axis receive zeros.
  bool wrap = true;
  /// The sizes of what this rank receives, for each tensor. All ranks give
  /// them, or none does; then the tensors of all ranks have equal sizes. If
  /// given, ranks compare the numbers of elements, for each dtype.
  std::vector<Shape> receive_sizes = {};
};

/// Sends `tensors` to rank + k of `axis` and returns what rank - k has sent.
/// `k` may be negative, or larger than the axis. The gradient is shifted by -k.
/// Tensors of one dtype travel in one message, which is read and written in
/// place. The results have memory of their own.
TensorList Shift(TensorSpan tensors, const DeviceMesh& axis, int64_t k,
                 const ShiftOptions& options = {});
Tensor Shift(const Tensor& x, const DeviceMesh& axis, int64_t k,
             const ShiftOptions& options = {});

/// Returns the tensors of all ranks of `axis`, concatenated along `dim` in the
/// order of ranks. The gradient is a reduce-scatter. On an axis of one rank the
/// result is a view of `x`.
/// \param dim counts from the end if negative.
/// \param sizes x.size(dim) on each rank of the axis, equal on all ranks
///     (GatherNumbers of row_exchange.h collects them); empty: x.size(dim) on
///     all of them.
Tensor AllGather(const Tensor& x, const DeviceMesh& axis, int dim = 0,
                 absl::Span<const int64_t> sizes = {});

/// Returns the sum of the tensors of all ranks of `axis`. The gradient is an
/// all-reduce. On an axis of one rank the result is a view of `x`.
Tensor AllReduce(const Tensor& x, const DeviceMesh& axis);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_FUNCTIONAL_COLLECTIVES_H_
