// SPDX-License-Identifier: Apache-2.0

#include "crosshatch/mesh/mesh_collectives.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

absl::StatusOr<std::vector<double>> SumOverMesh(const DeviceMesh& mesh,
                                                const Tensor& values,
                                                const std::string& label) {
  CH_CHECK(!values.is_distributed())
      << "SumOverMesh takes this rank's values as a plain tensor, not "
      << values.Describe();
  RankContext& context = RankContext::Current();
  CH_RETURN_IF_ERROR(context.status());
  CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(mesh));
  const NoGrad no_grad;
  const Tensor sums =
      values.dtype() == kFloat64 ? Clone(values) : ToDType(values, kFloat64);
  CH_CHECK(sums.is_contiguous()) << sums.Describe();
  CH_RETURN_IF_ERROR(AllReduce(*comm, sums.raw_data(), sums.numel(), kFloat64,
                               ReduceOp::kSum, context.current_stream(),
                               label));
  if (context.dry_run()) {
    return std::vector<double>(static_cast<size_t>(sums.numel()), 0.0);
  }
  std::vector<double> result = sums.ToVector<double>();
  CH_RETURN_IF_ERROR(context.status());
  return result;
}

absl::StatusOr<std::vector<double>> SumOverMesh(const DeviceMesh& mesh,
                                                absl::Span<const double> values,
                                                const std::string& label) {
  return SumOverMesh(
      mesh, FromValues<double>({static_cast<int64_t>(values.size())}, values),
      label);
}

absl::StatusOr<std::optional<RankDifference>> FindRankDifference(
    const DeviceMesh& mesh, const std::string& here, const std::string& label) {
  if (mesh.size() == 1) return std::nullopt;
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      communicator->Exchange(here, label));
  const absl::Span<const int> ranks = mesh.layout().ranks();
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] != all[0]) {
      return RankDifference{all[0], ranks[0], all[i], ranks[i]};
    }
  }
  return std::nullopt;
}

}  // namespace crosshatch
