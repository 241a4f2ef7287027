// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/ops/redistribute.h"

#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/op.h"

namespace crosshatch {

Tensor Redistribute(const Tensor& t, const Layout& to,
                    const RedistributeOptions& options) {
  const DType dtype = options.forward_dtype.value_or(t.dtype());
  if (t.is_distributed() && DTensorHandler::Of(t).layout() == to &&
      dtype == t.dtype()) {
    return t;
  }
  return Apply1(RedistributeOp(to, CommOrigin::Explicit(), options), {t});
}

const RedistributeCounts& GetRedistributeCounts() {
  return DTensorRuntime::Current().counts();
}

}  // namespace crosshatch
