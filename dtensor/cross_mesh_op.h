// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_
#define CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_

/// \file
/// The op between meshes. Every rank of either mesh calls it with one input and
/// has one output: its part where it is on the mesh, else a plain scalar that
/// stands for it in the graph. So its gradient is the same op the other way
/// round.

#include <memory>

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// From where to where; equal on all ranks of both meshes.
struct CrossMeshRoute {
  DeviceMesh from_mesh;
  Layout from;
  DeviceMesh to_mesh;
  Layout to;
  /// The whole tensor has them.
  Shape sizes;
  DType dtype = kFloat32;
  /// On `to_mesh`: the layout in which the gradient is sent back.
  Layout gradient;
  /// What is sent is a gradient, which nobody asked for by itself.
  bool of_gradient = false;
};

class CrossMeshOp final : public WholeOp {
 public:
  static constexpr OpInfo kInfo = {"redistribute_across"};
  explicit CrossMeshOp(const CrossMeshRoute& route) : route(route) {}
  const OpInfo& info() const override { return kInfo; }
  /// Its input is distributed on a rank of the source's mesh, else plain.
  TensorList Forward(TensorSpan inputs) const override;
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;

  const CrossMeshRoute& route;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_CROSS_MESH_OP_H_
