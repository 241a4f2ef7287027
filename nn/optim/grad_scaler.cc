// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/gradients.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Returns whether any rank has a gradient that is not finite. All ranks of the
// job take part: a rank outside of a gradient's mesh must skip the step, too.
absl::StatusOr<bool> AnyOverflow(const LocalGrads& local) {
  const Tensor sum = Zeros({1}, kFloat64);
  VisitAllRuns(local.grads,
               [&](const Tensor& run) { AddSquares(run, sum, 0); });
  CH_ASSIGN_OR_RETURN(const bool finite, SumIsFinite(sum, "found_inf"));
  return !finite;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), state_{.scale = options.init_scale} {
  CH_CHECK(options.init_scale > 0 && options.growth_factor > 1 &&
           options.backoff_factor > 0 && options.backoff_factor < 1 &&
           options.growth_interval > 0)
      << "GradScaler: scale " << options.init_scale << ", growth by "
      << options.growth_factor << " each " << options.growth_interval
      << ", backoff by " << options.backoff_factor;
}

Tensor GradScaler::Scale(const Tensor& loss) const {
  return Mul(loss, state_.scale);
}

GradScaler::Unscaled* GradScaler::Find(const Optimizer& optimizer) {
  for (Unscaled& entry : unscaled_) {
    if (entry.optimizer == &optimizer) return &entry;
  }
  return nullptr;
}

absl::Status GradScaler::Unscale(const Optimizer& optimizer) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (Find(optimizer) != nullptr) {
    return absl::FailedPreconditionError(
        "GradScaler: this optimizer's gradients are unscaled already; Update "
        "ends the iteration");
  }
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const LocalGrads local,
                      CollectLocalGrads(optimizer.parameters(), "unscale"));
  CH_ASSIGN_OR_RETURN(const bool overflowed, AnyOverflow(local));
  VisitAllRuns(local.grads,
               [&](const Tensor& run) { MulInPlace(run, 1 / state_.scale); });
  unscaled_.push_back({&optimizer, overflowed, false});
  return absl::OkStatus();
}

absl::StatusOr<bool> GradScaler::Step(Optimizer& optimizer) {
  if (Find(optimizer) == nullptr) CH_RETURN_IF_ERROR(Unscale(optimizer));
  Unscaled& entry = *Find(optimizer);
  if (entry.stepped) {
    return absl::FailedPreconditionError(
        "GradScaler: this optimizer has stepped already; Update ends the "
        "iteration");
  }
  entry.stepped = true;
  if (entry.overflowed) return false;
  CH_RETURN_IF_ERROR(optimizer.Step());
  return true;
}

absl::Status GradScaler::Update() {
  if (unscaled_.empty()) {
    return absl::FailedPreconditionError(
        "GradScaler: no gradients were unscaled since the last Update");
  }
  const bool overflowed =
      std::any_of(unscaled_.begin(), unscaled_.end(),
                  [](const Unscaled& entry) { return entry.overflowed; });
  unscaled_.clear();
  if (overflowed) {
    state_.scale *= options_.backoff_factor;
    state_.growth_tracker = 0;
  } else if (++state_.growth_tracker == options_.growth_interval) {
    state_.scale *= options_.growth_factor;
    state_.growth_tracker = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<StateDict> GradScaler::State() {
  if (!unscaled_.empty()) {
    return absl::FailedPreconditionError(
        "GradScaler: gradients were unscaled; Update ends the iteration, and "
        "then there is a state");
  }
  StateDict state;
  CH_RETURN_IF_ERROR(state.Add("scale", state_.scale));
  CH_RETURN_IF_ERROR(state.Add("growth_tracker", state_.growth_tracker));
  return state;
}

absl::StatusOr<StateDict> GradScaler::StateToFill(
    const std::vector<std::string>& saved) {
  CH_ASSIGN_OR_RETURN(StateDict state, State());
  CH_RETURN_IF_ERROR(
      MatchStateNames("this GradScaler", NamesOf(state), saved, {}).status());
  return state;
}

absl::Status GradScaler::Restore(const StateDict& state) {
  GradScalerState restored;
  CH_ASSIGN_OR_RETURN(restored.scale, state.Get<double>("scale"));
  CH_ASSIGN_OR_RETURN(restored.growth_tracker,
                      state.Get<int64_t>("growth_tracker"));
  if (!(restored.scale > 0) || !std::isfinite(restored.scale) ||
      restored.growth_tracker < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "GradScaler: a scale of ", restored.scale, " after ",
        restored.growth_tracker, " iterations is none that it comes to"));
  }
  state_ = restored;
  return absl::OkStatus();
}

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
