// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CROSS_MESH_H_
#define CROSSHATCH_DTENSOR_CROSS_MESH_H_

/// \file
/// From a layout on one mesh to a layout on another: of another shape or order,
/// over the same ranks, some of them, or others altogether.
///
///     // Ranks 0-1 hold x in rows, ranks 1-3 are to hold it whole.
///     CrossMeshTensor x = encoder.coordinate() ? CrossMeshTensor(rows)
///                                              : CrossMeshTensor::Absent();
///     CrossMeshTensor y = RedistributeAcross(
///         x, {.from_mesh = encoder, .from = by_rows,
///             .to_mesh = decoder, .to = whole, .sizes = {8, 6}});
///     if (y.present()) Use(y.tensor());
///
/// PlanCrossMesh (cross_mesh_plan.h) says what moves. Both meshes are of one
/// World; the communicator is that of the ranks of either, for the current
/// stream, made by the first call.

#include <optional>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// What a rank has of a tensor on a mesh that it may not be on.
class CrossMeshTensor {
 public:
  /// On a rank of the mesh. \pre tensor.is_distributed(), checked
  explicit CrossMeshTensor(Tensor tensor);
  /// On any other rank. \param requires_grad whether the tensor does, on the
  /// ranks that have it.
  static CrossMeshTensor Absent(bool requires_grad = false);

  bool present() const { return held_.is_distributed(); }
  /// \pre present(), checked
  const Tensor& tensor() const;

  /// What holds the tensor's place in the graph: itself where it is present,
  /// else a plain scalar 0. Such a rank has its part in the backward pass too:
  /// it calls Backward on the scalar that it got where the others had a result,
  /// or adds that to a plain loss of its own.
  const Tensor& tie() const { return held_; }

 private:
  friend CrossMeshTensor MakeCrossMeshTensor(Tensor held);
  CrossMeshTensor() = default;

  Tensor held_;
};

/// From where to where; equal on all ranks of both meshes.
struct CrossMeshEnds {
  DeviceMesh from_mesh;
  Layout from;
  DeviceMesh to_mesh;
  Layout to;
  /// Global.
  Shape sizes;
  DType dtype = kFloat32;
  /// On `to_mesh`: the layout in which the gradient is taken and sent back. By
  /// default `to` with pending reductions read as Replicate; Partial(sum) in
  /// place of Replicate where each rank's gradient is but a summand; nothing
  /// else (grad_layout.h).
  std::optional<Layout> gradient = std::nullopt;
};

/// The same values on `ends.to_mesh`. Called by every rank of either mesh, in
/// the same order; a rank of neither may call it too, and nothing happens.
///
/// Each element that a rank of `to_mesh` lacks comes from one rank that holds
/// it, straight to its place: one all-to-all over the ranks of both meshes, or
/// none if no rank lacks anything. Pending reductions are done first, on
/// `from_mesh`. Where no rank communicates, the result may alias `t` and is not
/// written to in place.
///
/// Differentiable, and twice: the gradient goes the same way back, into the
/// layout `ends.from` with pending reductions read as Replicate. For that the
/// backward pass has to come through here on all ranks or on none, see
/// CrossMeshTensor::tie.
///
/// Checks that a present `t` is what `ends` says. A communication error poisons
/// the rank, as in Redistribute.
CrossMeshTensor RedistributeAcross(const CrossMeshTensor& t,
                                   const CrossMeshEnds& ends);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_CROSS_MESH_H_
