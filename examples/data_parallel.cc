// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/data_parallel.h"

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::examples {

absl::StatusOr<DataParallel> DataParallel::Create(
    const DeviceMesh& mesh, const std::vector<std::string>& axes) {
  std::vector<int> indices;
  Layout rows = Layout::Replicated(mesh.layout(), 1);
  for (const std::string& name : axes) {
    CH_ASSIGN_OR_RETURN(const int axis, mesh.layout().AxisIndex(name));
    indices.push_back(axis);
    rows = rows.WithShard(axis, 0);
  }
  CH_ASSIGN_OR_RETURN(
      Communicator * comm,
      mesh.communicator(indices,
                        mesh.world().context().compute_stream().name()));
  return DataParallel(mesh, rows, comm);
}

absl::StatusOr<double> DataParallel::Sum(const Tensor& scalar,
                                         const std::string& label) const {
  const NoGrad no_grad;
  RankContext& context = mesh_.world().context();
  const Tensor sum = ToDType(LocalTensor(scalar), kFloat64);
  CH_RETURN_IF_ERROR(AllReduce(*comm_, sum.raw_data(), 1, kFloat64,
                               ReduceOp::kSum, context.current_stream(),
                               label));
  if (context.dry_run()) return 0.0;
  const double value = sum.ToVector<double>()[0];
  CH_RETURN_IF_ERROR(context.status());
  return value;
}

}  // namespace crosshatch::examples
