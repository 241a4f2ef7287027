// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/accumulate.h"

#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fsdp_state.h"

namespace crosshatch::fsdp {

absl::Status AccumulateGradients(
    nn::Module& root, int64_t count,
    absl::FunctionRef<absl::Status(int64_t i)> micro_batch, AccumulateBy by) {
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("AccumulateGradients of ", count,
                     " micro-batches: must be at least 1"));
  }
  const std::vector<FsdpState*> states = FsdpState::Below({&root});
  for (const FsdpState* state : states) {
    if (state->settings().requires_gradient_sync) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("AccumulateGradients: ", state->Name(),
                     " has Settings::requires_gradient_sync = false, so no "
                     "gradients would reach the optimizer; set it to true, "
                     "AccumulateGradients switches it"));
  }
  const auto set_sync = [&states](bool on) {
    for (FsdpState* state : states) {
      state->set_requires_gradient_sync(on);
    }
  };
  const absl::Cleanup switch_back = [&] { set_sync(true); };
  for (int64_t i = 0; i < count; ++i) {
    set_sync(by == AccumulateBy::kShards || i + 1 == count);
    CH_RETURN_IF_ERROR(micro_batch(i));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::fsdp
