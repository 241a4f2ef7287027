// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/clip_grad.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/neighbours.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

/// A gradient's local part.
struct LocalGrad {
  const Parameter* parameter;
  Tensor local;
  /// Index in the list of meshes; -1 for a plain gradient.
  int mesh;
  /// Whether this rank counts it.
  bool owned;
};

/// The gradients of `parameters`, and the meshes they are on, each once.
absl::StatusOr<std::vector<LocalGrad>> Collect(
    absl::Span<Parameter* const> parameters, std::vector<DeviceMesh>& meshes) {
  std::vector<LocalGrad> grads;
  for (const Parameter* parameter : parameters) {
    const Tensor& grad = parameter->grad();
    if (!grad.defined()) continue;
    if (!grad.is_distributed()) {
      grads.push_back({parameter, grad, -1, true});
      continue;
    }
    const Layout& layout = LayoutOf(grad);
    if (layout.is_partial()) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot clip the gradient of ", parameter->name(),
                       ", which holds partial sums: ", grad.Describe()));
    }
    const DeviceMesh mesh = MeshOf(grad);
    if (!mesh.coordinate().has_value()) continue;
    int index = 0;
    while (index < static_cast<int>(meshes.size()) &&
           meshes[static_cast<size_t>(index)] != mesh) {
      ++index;
    }
    if (index == static_cast<int>(meshes.size())) meshes.push_back(mesh);
    grads.push_back({parameter, LocalTensor(grad), index,
                     layout.IsOwner(*mesh.coordinate())});
  }
  return grads;
}

/// Calls `visit(start, count)` for each run of gradients that are neighbours in
/// memory, and for each gradient that is not contiguous by itself.
template <typename Together, typename Visit>
void VisitRuns(const std::vector<LocalGrad>& grads, Together together,
               Visit visit) {
  size_t next = 0;
  while (next < grads.size()) {
    const LocalGrad& first = grads[next];
    int64_t count = 0;
    do {
      count += grads[next].local.numel();
      ++next;
    } while (next < grads.size() && first.local.is_contiguous() &&
             grads[next].local.is_contiguous() &&
             together(first, grads[next]) &&
             FollowsAfter(first.local, count, grads[next].local));
    if (count == 0) continue;
    if (first.local.is_contiguous()) {
      visit(first, MakeView(first.local.storage(), first.local.storage_offset(),
                            {count}, {1}, first.local.dtype()));
    } else {
      visit(first, first.local);
    }
  }
}

/// sums[slot] += the squares of `local`, in float64.
void AddSquares(const Tensor& local, const Tensor& sums, int slot) {
  RankContext& context = RankContext::Current();
  if (context.device().is_meta()) return;
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
  context.current_stream().Launch(
      [args, &kernels = context.kernels()](KernelContext& kernel_context) {
        kernels.reduce(args, kernel_context);
      });
}

absl::Status NotFinite(const std::vector<LocalGrad>& grads, double norm) {
  const std::string start =
      absl::StrCat("the norm of the gradients is ", norm, ": ");
  for (const LocalGrad& grad : grads) {
    for (double value : grad.local.ToVector<double>()) {
      if (std::isfinite(value)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          start, "that of ", grad.parameter->name(), " holds ", value));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(start, "another rank holds the part that is not finite"));
}

}  // namespace

absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options) {
  RankContext& context = RankContext::Current();
  CH_RETURN_IF_ERROR(context.status());
  const NoGrad no_grad;
  std::vector<DeviceMesh> meshes;
  CH_ASSIGN_OR_RETURN(const std::vector<LocalGrad> grads,
                      Collect(parameters, meshes));

  // One slot for each mesh, and the last for plain gradients.
  const auto num_meshes = static_cast<int>(meshes.size());
  const Tensor sums = Zeros({num_meshes + 1}, kFloat64);
  const auto slot_of = [&](const LocalGrad& grad) {
    return grad.mesh < 0 ? num_meshes : grad.mesh;
  };
  VisitRuns(
      grads,
      [](const LocalGrad& a, const LocalGrad& b) {
        return a.mesh == b.mesh && a.owned == b.owned;
      },
      [&](const LocalGrad& first, const Tensor& run) {
        if (first.owned) AddSquares(run, sums, slot_of(first));
      });

  Stream& stream = context.current_stream();
  for (int m = 0; m < num_meshes; ++m) {
    const DeviceMesh& mesh = meshes[static_cast<size_t>(m)];
    std::vector<int> axes(static_cast<size_t>(mesh.ndim()));
    std::iota(axes.begin(), axes.end(), 0);
    CH_ASSIGN_OR_RETURN(Communicator * comm,
                        mesh.communicator(axes, stream.name()));
    double* const sum =
        context.device().is_meta() ? nullptr : sums.data<double>() + m;
    CH_RETURN_IF_ERROR(AllReduce(*comm, sum, 1, kFloat64, ReduceOp::kSum,
                                 stream, "clip_grad_norm"));
  }
  if (context.device().is_meta()) return 0.0f;

  const std::vector<double> squares = sums.ToVector<double>();
  CH_RETURN_IF_ERROR(context.status());
  const double norm =
      std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  if (!std::isfinite(norm)) {
    if (options.error_if_nonfinite) return NotFinite(grads, norm);
    return static_cast<float>(norm);
  }
  // As torch.nn.utils.clip_grad_norm_ has it.
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) {
    VisitRuns(
        grads, [](const LocalGrad&, const LocalGrad&) { return true; },
        [&](const LocalGrad&, const Tensor& run) { MulInPlace(run, factor); });
  }
  return static_cast<float>(norm);
}

}  // namespace crosshatch::nn
