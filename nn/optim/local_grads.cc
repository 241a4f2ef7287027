// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/local_grads.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/nn/optim/gradient_check.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {

absl::StatusOr<LocalGrads> CollectLocalGrads(
    absl::Span<Parameter* const> parameters, const char* purpose) {
  LocalGrads result;
  for (const Parameter* parameter : parameters) {
    CH_CHECK(parameter != nullptr) << purpose << ": a parameter is null";
    if (parameter->gradient_is_pending()) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot ", purpose, ": the gradient of ",
                       parameter->name(), kNotReduced));
    }
    const Tensor& grad = parameter->grad();
    if (!grad.defined() && !parameter->requires_grad()) continue;
    const Tensor& whole = grad.defined() ? grad : parameter->data();
    if (!whole.is_distributed()) {
      if (grad.defined()) {
        result.grads.push_back({parameter, grad, -1, 0, true});
      }
      continue;
    }
    const DeviceMesh mesh = MeshOf(whole);
    if (!mesh.coordinate().has_value()) continue;
    std::vector<DeviceMesh>& meshes = result.meshes;
    // Meshes with the same ranks in the same order count as one.
    const auto found = std::find_if(
        meshes.begin(), meshes.end(), [&](const DeviceMesh& other) {
          return other.layout().ranks() == mesh.layout().ranks() &&
                 other.root() == mesh.root();
        });
    const auto index = static_cast<size_t>(found - meshes.begin());
    if (found == meshes.end()) {
      meshes.push_back(mesh);
      result.num_parameters.push_back(0);
    }
    const int place = result.num_parameters[index]++;
    if (!grad.defined()) continue;
    const Layout& layout = LayoutOf(grad);
    if (layout.is_partial()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot ", purpose, " the gradient of ", parameter->name(),
          ", which holds partial sums: ", grad.Describe()));
    }
    result.grads.push_back({parameter, LocalTensor(grad),
                            static_cast<int>(index), place,
                            layout.IsOwner(*mesh.coordinate())});
  }
  return result;
}

void AddSquares(const Tensor& local, const Tensor& sums, int slot) {
  if (RankContext::Current().dry_run()) return;  // No address to count from.
  ReduceArgs args;
  args.kind = ReduceKind::kSumOfSquares;
  args.shape.ndim = local.ndim();
  CH_CHECK_LE(local.ndim(), kMaxKernelDims) << "clip_grad_norm";
  for (int d = 0; d < local.ndim(); ++d) {
    args.shape.sizes[d] = local.sizes()[static_cast<size_t>(d)];
    args.in.strides[d] = local.strides()[static_cast<size_t>(d)];
  }
  args.reduced = (1u << local.ndim()) - 1;
  args.in.data = local.raw_data();
  args.in.dtype = local.dtype();
  args.out.data = sums.data<double>() + slot;
  args.out.dtype = kFloat64;
  args.mode = WriteMode::kAccumulate;
  internal::Launch(&KernelTable::reduce, args);
}

}  // namespace crosshatch::nn
