// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute.h"

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dispatch/dtensor_handler.h"
#include "crosshatch/dtensor/dispatch/redistribute_op.h"
#include "crosshatch/dtensor/redistribution/runtime.h"
#include "crosshatch/tensor/op.h"

namespace crosshatch {

Tensor Redistribute(const Tensor& t, const LayoutSpec& to,
                    const RedistributeOptions& options) {
  CH_CHECK(t.is_distributed())
      << "Redistribute: " << t.Describe()
      << " is not distributed; FromLocal or Replicated make it so";
  const Layout& from = DTensorHandler::Of(t).layout();
  const Layout& layout = to.Of("Redistribute", from.mesh(), t.ndim());
  if (from == layout &&
      options.forward_dtype.value_or(t.dtype()) == t.dtype()) {
    return t;
  }
  return Apply1(RedistributeOp(layout, CommOrigin::Explicit(), options), {t});
}

const RedistributeCounts& GetRedistributeCounts() {
  return DTensorRuntime::Current().counts();
}

}  // namespace crosshatch
