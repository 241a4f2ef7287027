// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/style_parts.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/tensor/ops/settle.h"
#include "crosshatch/tp/handed_out.h"

namespace crosshatch::tp {
namespace {

constexpr char kWhat[] = "a tensor-parallel layout";

// The layout of an activation whose last dim, that of features, comes in units.
Layout ActivationLayout(const DeviceMesh& mesh, int ndim, Placement placement,
                        int64_t unit) {
  const bool splits_features =
      placement.is_shard() &&
      NormalizeDim(placement.dim(), ndim, kWhat) == ndim - 1;
  return LayoutOn(mesh, ndim, placement, splits_features ? unit : 1);
}

// Whether `a` and `b`, both plain, are the same elements of one memory.
bool AreTheSame(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace

Layout LayoutOn(const DeviceMesh& mesh, int ndim, Placement placement,
                int64_t unit) {
  Layout layout = Layout::Replicated(mesh.layout(), ndim);
  if (placement.is_partial()) {
    return layout.WithPartial(0, placement.reduce_op());
  }
  if (!placement.is_shard()) return layout;
  const int dim = static_cast<int>(NormalizeDim(placement.dim(), ndim, kWhat));
  return layout.WithDim(dim, {.axes = {0}, .unit = unit});
}

absl::Status SpreadParameter(nn::Parameter& parameter, const DeviceMesh& mesh,
                             Placement placement, int64_t unit) {
  const int ndim = parameter.data().ndim();
  if (placement.is_shard() &&
      (placement.dim() < -ndim || placement.dim() >= ndim)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ",
        parameter.name().empty() ? "without a name yet" : parameter.name(),
        ", ", parameter.data().Describe(), ", cannot be spread as ",
        placement.ToString(), ": it has ", ndim, " dims"));
  }
  return nn::DistributeParameter(
      parameter, mesh,
      LayoutOn(mesh, parameter.data().ndim(), placement, unit));
}

absl::Status SpreadOwnParameters(nn::Module& module, const DeviceMesh& mesh,
                                 Placement placement) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    CH_RETURN_IF_ERROR(SpreadParameter(*parameter, mesh, placement));
  }
  return absl::OkStatus();
}

absl::Status ReplicateOwnBuffers(nn::Module& module, const DeviceMesh& mesh) {
  for (const auto& [name, buffer] : module.own_buffers()) {
    if (buffer->data().is_distributed()) continue;
    CH_RETURN_IF_ERROR(SpreadParameter(*buffer, mesh, Replicate()));
  }
  return absl::OkStatus();
}

Tensor Bring(const Tensor& tensor, const DeviceMesh& mesh,
             const Crossing& crossing) {
  if (!tensor.defined()) return tensor;
  Tensor spread = tensor;
  if (!tensor.is_distributed()) {
    const Layout layout = ActivationLayout(mesh, tensor.ndim(), crossing.given,
                                           crossing.given_unit);
    spread = FromLocal(tensor, mesh, layout, GradientLayout(layout));
  }
  Layout target = ActivationLayout(mesh, tensor.ndim(), crossing.desired,
                                   crossing.desired_unit);
  // A split into units that is there already is the split that is wanted.
  const Layout& layout = LayoutOf(spread);
  if (layout.state_of_axis(0) == target.state_of_axis(0)) target = layout;
  const Tensor brought = Redistribute(spread, target);
  // Where this rank has all of what it had, and only that, the part that a
  // style may hand out next is the caller's own tensor.
  if (!tensor.is_distributed() && crossing.given != crossing.desired &&
      AreTheSame(LocalTensor(brought), tensor)) {
    NoteLiesBothWays(tensor, mesh);
  }
  return brought;
}

Tensor LocalPart(const Tensor& tensor, bool sum_gradients) {
  Layout gradient = GradientLayout(LayoutOf(tensor));
  if (sum_gradients && LayoutOf(tensor).state_of_axis(0).is_replicate()) {
    gradient = gradient.WithPartial(0, ReduceOp::kSum);
  }
  return ToLocal(tensor, gradient);
}

Tensor TakeIn(const Tensor& tensor, const DeviceMesh& mesh,
              const Crossing& crossing, const nn::Module& module,
              const char* style) {
  CheckTaken(tensor, mesh, crossing.given, module, style);
  return Bring(tensor, mesh, crossing);
}

Tensor HandOut(const Tensor& tensor, const DeviceMesh& mesh,
               const Placement& placement, const nn::Module& module,
               const char* style, bool sum_gradients) {
  Tensor part = LocalPart(tensor, sum_gradients);
  NoteHandedOut(part, mesh, placement, module, style);
  return part;
}

Tensor WithWholeGradient(const Tensor& output) {
  if (!output.requires_grad() || LayoutOf(output).is_partial()) return output;
  return Settle(output);
}

}  // namespace crosshatch::tp
