// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/gradient_check.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// The address of this variable is the key of the rank's slot.
constexpr char kKey = 0;

struct Warned final : RankContext::Extension {};

// Prints a line to standard error once per rank.
void WarnOnce(const std::string& message) {
  RankContext& context = RankContext::Current();
  std::unique_ptr<RankContext::Extension>& slot = context.extension(&kKey);
  if (slot != nullptr) return;
  slot = std::make_unique<Warned>();
  const std::string line =
      absl::StrCat("warning: rank ", context.world_rank(), ": ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

absl::Status CompareReplicasOf(const char* what, const Parameter& parameter) {
  const Tensor& data = parameter.data();
  if (!data.is_distributed()) return absl::OkStatus();
  CH_RETURN_IF_ERROR(CompareReplicas(
      absl::StrCat(what, ": parameter ", parameter.name()), LocalTensor(data),
      MeshOf(data), LayoutOf(data), data.sizes()));
  const Tensor& grad = parameter.grad();
  if (!grad.defined() || !grad.is_distributed()) return absl::OkStatus();
  return CompareReplicas(absl::StrCat(what, ": gradient of ", parameter.name()),
                         LocalTensor(grad), MeshOf(grad), LayoutOf(grad),
                         grad.sizes());
}

}  // namespace

const char kNotReduced[] =
    " was not reduced: set fsdp::Settings::requires_gradient_sync and "
    "requires_all_reduce to true before the last backward of a step, or call "
    "FinalizeBackward after it if manual_finalization is set";

std::vector<std::shared_ptr<Parameter>> ShareListed(
    const char* who, absl::Span<Parameter* const> parameters) {
  std::vector<std::shared_ptr<Parameter>> owners;
  absl::flat_hash_map<const Parameter*, size_t> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    CH_CHECK(parameters[i] != nullptr) << who << ": parameter " << i << " of "
                                       << parameters.size() << " is null";
    const auto [first, inserted] = seen.try_emplace(parameters[i], i);
    CH_CHECK(inserted) << who << ": parameter " << parameters[i]->name()
                       << " is listed twice, as " << first->second << " and "
                       << i << ", and would be updated twice; list it once";
    if (auto owner = parameters[i]->weak_from_this().lock()) {
      owners.push_back(std::move(owner));
    }
  }
  return owners;
}

absl::Status CheckGradients(const char* what,
                            absl::Span<Parameter* const> parameters) {
  if (parameters.empty() && RankContext::Current().world_size() == 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": the list of parameters is empty, so that no step changes ",
        "anything; give it model.Parameters()"));
  }
  const Parameter* trained = nullptr;
  bool any = false;
  bool ranks_share = false;
  for (const Parameter* parameter : parameters) {
    if (parameter->is_swapped()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": parameter ", parameter->name(), " holds its average, which ",
          "Ema::SwapIn put there, and the step would be lost when its values ",
          "come back; call Ema::SwapOut first"));
    }
    if (parameter->gradient_is_pending()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, ": the gradient of ", parameter->name(), kNotReduced));
    }
    any = any || parameter->grad().defined();
    ranks_share = ranks_share || parameter->gathered().defined();
    if (trained == nullptr && parameter->requires_grad()) trained = parameter;
  }
  if (!any && trained != nullptr) {
    const std::string message = absl::StrCat(
        what, ": none of the ", parameters.size(), " parameters (the first is ",
        trained->name(), ") has a gradient: call Backward before the step, ",
        "ZeroGrad after it, and make the optimizer of the parameters that the ",
        "model has now");
    // Either all ranks have a gradient of a sharded parameter or none. A plain
    // parameter may lack one on a single rank.
    if (!ranks_share && RankContext::Current().world_size() > 1) {
      WarnOnce(message);
    } else {
      return absl::FailedPreconditionError(message);
    }
  }
  if (!ComparesReplicas()) return absl::OkStatus();
  for (const Parameter* parameter : parameters) {
    CH_RETURN_IF_ERROR(CompareReplicasOf(what, *parameter));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
