// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/sum_is_finite.h"

#include <cmath>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

absl::StatusOr<bool> SumIsFinite(const Tensor& sum, const std::string& label) {
  RankContext& context = RankContext::Current();
  CH_ASSIGN_OR_RETURN(const std::vector<Communicator*> roots,
                      RootCommunicators());
  for (Communicator* root : roots) {
    CH_RETURN_IF_ERROR(AllReduce(*root, sum.raw_data(), 1, kFloat64,
                                 ReduceOp::kSum, context.current_stream(),
                                 label));
  }
  if (context.device().is_meta()) return true;
  const double total = sum.ToVector<double>()[0];
  CH_RETURN_IF_ERROR(context.status());
  return std::isfinite(total);
}

}  // namespace crosshatch::nn
