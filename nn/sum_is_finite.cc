// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/sum_is_finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/mesh_communicator.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

absl::StatusOr<bool> SumIsFinite(const Tensor& sum,
                                 absl::Span<const DeviceMesh> meshes,
                                 const std::string& label) {
  RankContext& context = RankContext::Current();
  std::vector<DeviceMesh> roots;
  for (const DeviceMesh& mesh : meshes) {
    const DeviceMesh root = mesh.root();
    if (std::find(roots.begin(), roots.end(), root) == roots.end()) {
      roots.push_back(root);
    }
  }
  Stream& stream = context.current_stream();
  for (const DeviceMesh& root : roots) {
    CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(root));
    CH_RETURN_IF_ERROR(AllReduce(*comm, sum.raw_data(), 1, kFloat64,
                                 ReduceOp::kSum, stream, label));
  }
  if (context.device().is_meta()) return true;
  const double total = sum.ToVector<double>()[0];
  CH_RETURN_IF_ERROR(context.status());
  return std::isfinite(total);
}

}  // namespace crosshatch::nn
