// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/cross_mesh.h"

#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/cross_mesh_op.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/op.h"

namespace crosshatch {

CrossMeshTensor MakeCrossMeshTensor(Tensor held) {
  CrossMeshTensor made;
  made.held_ = std::move(held);
  return made;
}

CrossMeshTensor::CrossMeshTensor(Tensor tensor) : held_(std::move(tensor)) {
  CH_CHECK(held_.is_distributed())
      << "CrossMeshTensor: " << held_.Describe() << " is not distributed";
}

CrossMeshTensor CrossMeshTensor::Absent(bool requires_grad) {
  Tensor tie = Zeros({});
  if (requires_grad) tie.set_requires_grad(true);
  return MakeCrossMeshTensor(std::move(tie));
}

const Tensor& CrossMeshTensor::tensor() const {
  CH_CHECK(present()) << "CrossMeshTensor: this rank is not on its mesh";
  return held_;
}

CrossMeshTensor RedistributeAcross(const CrossMeshTensor& t,
                                   const CrossMeshEnds& ends) {
  CH_CHECK(ends.from.mesh() == ends.from_mesh.layout() &&
           ends.to.mesh() == ends.to_mesh.layout())
      << "RedistributeAcross: layouts on " << ends.from.mesh().ToString()
      << " and " << ends.to.mesh().ToString() << ", meshes "
      << ends.from_mesh.ToString() << " and " << ends.to_mesh.ToString();
  CH_CHECK(&ends.from_mesh.world() == &ends.to_mesh.world())
      << "RedistributeAcross: the meshes are of different worlds";
  if (!ends.from_mesh.coordinate().has_value() &&
      !ends.to_mesh.coordinate().has_value()) {
    CH_CHECK(!t.present()) << "RedistributeAcross: " << t.tie().Describe()
                           << " is on neither mesh";
    return CrossMeshTensor::Absent();
  }
  const CrossMeshRoute route = {
      .from_mesh = ends.from_mesh,
      .from = ends.from,
      .to_mesh = ends.to_mesh,
      .to = ends.to,
      .sizes = ends.sizes,
      .dtype = ends.dtype,
      .gradient = ends.gradient.value_or(GradientLayout(ends.to))};
  CH_CHECK_OK(CheckGradLayout("RedistributeAcross", ends.to, route.gradient));
  return MakeCrossMeshTensor(Apply1(CrossMeshOp(route), {t.tie()}));
}

}  // namespace crosshatch
