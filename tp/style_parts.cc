// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/style_parts.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/layout/grad_layout.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/nn/distribute_module.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::tp {
namespace {

constexpr char kWhat[] = "a tensor-parallel layout";

// Returns the layout of an activation whose last dim, the features, is split
// between units.
Layout ActivationLayout(const DeviceMesh& mesh, int ndim, Placement placement,
                        int64_t unit) {
  const bool splits_features =
      placement.is_shard() &&
      NormalizeDim(placement.dim(), ndim, kWhat) == ndim - 1;
  return LayoutOn(mesh, ndim, placement, splits_features ? unit : 1);
}

// Checks that a plain tensor which is some DTensor's shard is taken with its
// layout. On one rank all layouts are equal.
void CheckGivenLayout(const Tensor& shard, const DeviceMesh& mesh,
                      const Layout& given) {
  const Layout* const own = ToLocalLayout(shard);
  if (own == nullptr || own->mesh() != mesh.layout() || mesh.size() == 1) {
    return;
  }
  const auto module = GradEdge(shard).node->module();
  CH_CHECK(own->state_of_axis(0) == given.state_of_axis(0))
      << (module == nullptr ? "the program" : *module)
      << " returned the plain tensor " << shard.Describe()
      << ", a local shard of layout " << own->ToString()
      << ", and the style of "
      << "this module takes it as " << given.ToString()
      << "; use one placement in both styles, or DTensors (without "
      << "use_local_output)";
}

struct ComparedMeshes final : RankContext::Extension {
  std::vector<MeshLayout> meshes;
};

// Compares the first plain tensor that is taken as replicated. This finds ids
// that differ between ranks even if no op on the mesh reads them.
void CompareFirst(const Tensor& input, const DeviceMesh& mesh,
                  const Layout& layout) {
  RankContext& context = RankContext::Current();
  if (!layout.state_of_axis(0).is_replicate() || context.dry_run() ||
      !IsFloatingPoint(input.dtype())) {
    return;
  }
  static constexpr char kKey = 0;
  std::unique_ptr<RankContext::Extension>& slot = context.extension(&kKey);
  if (slot == nullptr) slot = std::make_unique<ComparedMeshes>();
  auto& meshes = static_cast<ComparedMeshes&>(*slot).meshes;
  if (std::find(meshes.begin(), meshes.end(), mesh.layout()) != meshes.end()) {
    return;
  }
  meshes.push_back(mesh.layout());
  CompareReplicasOnce("the plain input", input, mesh, layout, input.sizes());
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

absl::Status DistributeParameter(nn::Parameter& parameter,
                                 const DeviceMesh& mesh, Placement placement,
                                 int64_t unit) {
  const int ndim = parameter.data().ndim();
  if (placement.is_shard() &&
      (placement.dim() < -ndim || placement.dim() >= ndim)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ",
        parameter.name().empty() ? "without a name yet" : parameter.name(),
        ", ", parameter.data().Describe(), ", cannot be distributed as ",
        placement.ToString(), ": it has ", ndim, " dims"));
  }
  return nn::DistributeParameter(parameter, mesh,
                                 LayoutOn(mesh, ndim, placement, unit));
}

absl::Status DistributeOwnParameters(nn::Module& module, const DeviceMesh& mesh,
                                     Placement placement) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    CH_RETURN_IF_ERROR(DistributeParameter(*parameter, mesh, placement));
  }
  return absl::OkStatus();
}

absl::Status ReplicateOwnBuffers(nn::Module& module, const DeviceMesh& mesh) {
  for (const auto& [name, buffer] : module.own_buffers()) {
    if (buffer->data().is_distributed()) continue;
    CH_RETURN_IF_ERROR(DistributeParameter(*buffer, mesh, Replicate()));
  }
  return absl::OkStatus();
}

Tensor RedistributeActivation(const Tensor& tensor, const DeviceMesh& mesh,
                              const ActivationLayouts& layouts) {
  if (!tensor.defined()) return tensor;
  Tensor distributed = tensor;
  if (!tensor.is_distributed()) {
    const Layout given = ActivationLayout(mesh, tensor.ndim(), layouts.given,
                                          layouts.given_unit);
    CheckGivenLayout(tensor, mesh, given);
    CompareFirst(tensor, mesh, given);
    distributed = FromLocal(tensor, mesh, given, given.WithoutPartials());
  }
  Layout target = ActivationLayout(mesh, tensor.ndim(), layouts.desired,
                                   layouts.desired_unit);
  // If the right dim is split already, it keeps its units.
  const Layout& layout = LayoutOf(distributed);
  if (layout.state_of_axis(0) == target.state_of_axis(0)) target = layout;
  return Redistribute(distributed, target);
}

Tensor LocalShard(const Tensor& tensor, bool sum_gradients) {
  Layout gradient = LayoutOf(tensor).WithoutPartials();
  if (sum_gradients && LayoutOf(tensor).state_of_axis(0).is_replicate()) {
    gradient = gradient.WithPartial(0, ReduceOp::kSum);
  }
  return ToLocal(tensor, gradient);
}

Tensor WithReducedGradient(const Tensor& output) {
  if (!output.requires_grad() || LayoutOf(output).is_partial()) return output;
  return ReducePartial(output);
}

}  // namespace crosshatch::tp
