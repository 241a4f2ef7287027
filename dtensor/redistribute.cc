// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute.h"

#include "crosshatch/dtensor/boundary_ops.h"
#include "crosshatch/dtensor/dtensor_handler.h"
#include "crosshatch/dtensor/dtensor_runtime.h"
#include "crosshatch/tensor/op.h"

namespace crosshatch {

Tensor Redistribute(const Tensor& t, const Layout& to) {
  if (t.is_distributed() && DTensorHandler::Of(t).layout() == to) return t;
  return Apply1(RedistributeOp(to), {t});
}

const RedistributeCounts& GetRedistributeCounts() {
  return DTensorRuntime::Current().counts();
}

}  // namespace crosshatch
