// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/grad_layout.h"

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch {
namespace {

template <typename... Args>
absl::Status Invalid(absl::string_view what, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", args...));
}

}  // namespace

absl::Status CheckGradLayout(absl::string_view what, const Layout& layout,
                             const Layout& grad) {
  if (grad.mesh() != layout.mesh()) {
    return Invalid(what, "the layout ", grad.ToString(), " of its gradient is ",
                   "on ", grad.mesh().ToString(), ", the tensor on ",
                   layout.mesh().ToString());
  }
  if (grad.ndim() != layout.ndim()) {
    return Invalid(what, "the layout ", grad.ToString(), " of its gradient is ",
                   "of ", grad.ndim(), " dims, the tensor has ", layout.ndim());
  }
  for (int d = 0; d < layout.ndim(); ++d) {
    if (layout.sharding(d) == grad.sharding(d)) continue;
    return Invalid(what, "its gradient must be split as the tensor is, by ",
                   layout.ToString(), ", and is declared ", grad.ToString());
  }
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    const AxisState& of_grad = grad.state_of_axis(axis);
    if (!of_grad.is_partial()) continue;
    if (layout.state_of_axis(axis).is_partial()) {
      return Invalid(
          what, "each summand of ", layout.ToString(),
          " has the whole gradient, which is declared a sum itself: ",
          grad.ToString());
    }
    if (of_grad.op != ReduceOp::kSum) {
      return Invalid(what, "gradients add up, and this one is declared ",
                     grad.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBoundaryGradLayout(absl::string_view what,
                                     const Layout& layout, const Layout& grad) {
  for (const AxisState& state : layout.axis_states()) {
    if (!state.is_partial() || state.op == ReduceOp::kSum) continue;
    return Invalid(what, "gradients go through pending sums only, and it is ",
                   "declared ", layout.ToString());
  }
  return CheckGradLayout(what, layout, grad);
}

}  // namespace crosshatch
