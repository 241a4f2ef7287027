// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_
#define CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_

/// \file
/// The op between meshes. Every rank of either mesh calls it with one input and
/// receives one output: its part if it is on the mesh, otherwise a plain scalar
/// that represents the tensor in the graph. So its gradient is the same op in
/// the other direction.

#include <memory>

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Source and destination, equal on all ranks of both meshes.
struct CrossMeshRoute {
  DeviceMesh from_mesh;
  Layout from;
  DeviceMesh to_mesh;
  Layout to;
  /// The global sizes.
  Shape sizes;
  DType dtype = kFloat32;
  /// The layout on `to_mesh` in which the gradient is sent back.
  Layout gradient;
  /// Whether a gradient is sent, by the backward pass.
  bool of_gradient = false;
};

class CrossMeshOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"redistribute_across"};
  explicit CrossMeshOp(const CrossMeshRoute& route) : route(route) {}
  const OpInfo& info() const override { return kInfo; }
  /// The input is distributed on a rank of the source's mesh, otherwise plain.
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const CrossMeshRoute& route;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_
