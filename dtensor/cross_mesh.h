// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CROSS_MESH_H_
#define CROSSHATCH_DTENSOR_CROSS_MESH_H_

/// \file
/// Redistribution from a layout on one mesh to a layout on another mesh. The
/// meshes may differ in shape, order and ranks, and need not have ranks in
/// common.
///
///     // Ranks 0-1 hold x in rows, ranks 1-3 are to hold it replicated.
///     CrossMeshTensor x = encoder.coordinate() ? CrossMeshTensor(rows)
///                                              : CrossMeshTensor::Absent();
///     CrossMeshTensor y = RedistributeAcross(
///         x, {.from_mesh = encoder, .from = by_rows,
///             .to_mesh = decoder, .to = whole, .sizes = {8, 6}});
///     if (y.present()) Use(y.tensor());
///
/// PlanCrossMesh (cross_mesh_plan.h) returns the plan. Both meshes belong to
/// one World. The communicator has the ranks of both meshes, for the current
/// stream; the first call creates it.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// A tensor on a mesh that may not include this rank.
class CrossMeshTensor {
 public:
  /// The tensor, on a rank of the mesh.
  /// \pre tensor.is_distributed(), checked
  explicit CrossMeshTensor(Tensor tensor);
  /// Stands for the tensor on any other rank.
  /// \param requires_grad whether the tensor requires a gradient on the ranks
  ///     that have it.
  static CrossMeshTensor Absent(bool requires_grad = false);

  bool present() const { return held_.is_distributed(); }
  /// \pre present(), checked
  const Tensor& tensor() const;

  /// Returns a tensor that represents this one in the graph: the tensor itself
  /// if it is present, otherwise a plain scalar 0. A rank without the tensor
  /// also takes part in the backward pass: it calls Backward on the scalar that
  /// it received where the others received a result, or adds that scalar to a
  /// plain loss of its own.
  const Tensor& tie() const { return held_; }

 private:
  friend CrossMeshTensor MakeCrossMeshTensor(Tensor held);
  CrossMeshTensor() = default;

  Tensor held_;
};

/// Source and destination, equal on all ranks of both meshes.
struct CrossMeshEnds {
  DeviceMesh from_mesh;
  Layout from;
  DeviceMesh to_mesh;
  Layout to;
  /// Global.
  Shape sizes;
  DType dtype = kFloat32;
  /// The layout on `to_mesh` in which the gradient is received and sent back.
  /// By default `to` with pending reductions replaced by Replicate. If each
  /// rank's gradient is only a summand, use Partial(sum) in place of Replicate.
  /// Other layouts are errors (grad_layout.h).
  std::optional<Layout> gradient = std::nullopt;
};

/// Returns the same values on `ends.to_mesh`. All ranks of either mesh call it,
/// in the same order. On a rank of neither mesh it does nothing.
///
/// Each element that a rank of `to_mesh` lacks is sent by one rank that holds
/// it, directly to its destination: one all-to-all over the ranks of both
/// meshes, or none if no rank lacks anything. Pending reductions are performed
/// first, on `from_mesh`. If no rank communicates, the result may alias `t` and
/// must not be written in place.
///
/// Differentiable, also twice. The gradient returns the same way, into the
/// layout `ends.from` with pending reductions replaced by Replicate. The
/// backward pass must therefore reach this op on all ranks or on none
/// (CrossMeshTensor::tie).
///
/// Checks that a present `t` matches `ends`. A communication error poisons the
/// rank, as in Redistribute.
CrossMeshTensor RedistributeAcross(const CrossMeshTensor& t,
                                   const CrossMeshEnds& ends);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_CROSS_MESH_H_
