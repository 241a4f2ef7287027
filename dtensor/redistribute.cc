// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/redistribute.h"

#include "absl/status/statusor.h"
#include "crosshatch/base/check.h"
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

Tensor Redistribute(const Tensor& t, absl::Span<const Placement> to,
                    const RedistributeOptions& options) {
  CH_CHECK(t.is_distributed())
      << "Redistribute: " << t.Describe() << " is not distributed";
  const absl::StatusOr<Layout> layout = Layout::FromPlacements(
      DTensorHandler::Of(t).layout().mesh(), t.ndim(), to);
  CH_CHECK_OK(layout.status())
      << " in Redistribute of " << t.Describe() << " to " << ToString(to);
  return Redistribute(t, *layout, options);
}

const RedistributeCounts& GetRedistributeCounts() {
  return DTensorRuntime::Current().counts();
}

}  // namespace crosshatch
