// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/mesh/mesh_communicator.h"
#include "crosshatch/nn/local_grads.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

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

/// parts[slot] takes in what `run` brings to the norm: a sum of powers, or for
/// infinity the largest magnitude.
void AddPart(const Tensor& run, double norm_type, const Tensor& parts,
             int slot) {
  if (norm_type == 2) return AddSquares(run, parts, slot);
  const Tensor part = MakeView(parts.storage(), slot, {}, {}, kFloat64);
  const Tensor magnitudes = ToDType(Abs(run), kFloat64);
  if (std::isinf(norm_type)) {
    CopyInPlace(part, Maximum(part, Max(magnitudes)));
  } else {
    AddInPlace(part,
               Sum(norm_type == 1 ? magnitudes : Pow(magnitudes, norm_type)));
  }
}

/// A maximum that a NaN wins, whatever engine it is reduced by.
double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

/// Whether two parts of the norm are of copies of the same tensors: as far as
/// the orders differ that processors of two kinds, or libraries, add in.
bool AreOfCopies(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-9 * std::max(a, b);
}

// Parts of meshes that are slices of another: ranks beyond hold copies of a
// slice's tensors, or other tensors (of other experts). Copies have the same
// part but for roundings, so the parts that differ are those of different
// tensors. With them every rank has the same norm.
class Slices {
 public:
  explicit Slices(const std::vector<DeviceMesh>& meshes) {
    for (size_t m = 0; m < meshes.size(); ++m) {
      const DeviceMesh root = meshes[m].root();
      if (meshes[m].size() == root.size()) continue;
      auto found = std::find_if(roots_.begin(), roots_.end(),
                                [&](const Root& r) { return r.mesh == root; });
      if (found == roots_.end()) {
        found = roots_.insert(roots_.end(), {.mesh = root});
      }
      found->slots.push_back(m);
    }
  }

  // Gathers `parts` of all ranks.
  absl::Status Gather(const Tensor& parts, Stream& stream) {
    const bool has_values = !parts.device().is_meta();
    for (Root& root : roots_) {
      CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(root.mesh));
      root.parts = Zeros({root.mesh.size(), parts.numel()}, kFloat64);
      CH_RETURN_IF_ERROR(
          AllGather(*comm, has_values ? parts.raw_data() : nullptr,
                    has_values ? root.parts.raw_data() : nullptr, parts.numel(),
                    kFloat64, stream, "clip_grad_norm"));
    }
    return absl::OkStatus();
  }

  // Replaces a slice's part by that of all slices.
  void AddTo(std::vector<double>& values, double norm_type) const {
    for (const Root& root : roots_) {
      const std::vector<double> all = root.parts.ToVector<double>();
      for (const size_t slot : root.slots) {
        std::vector<double> different;
        for (size_t at = slot; at < all.size(); at += values.size()) {
          if (std::none_of(
                  different.begin(), different.end(),
                  [&](double part) { return AreOfCopies(part, all[at]); })) {
            different.push_back(all[at]);
          }
        }
        values[slot] =
            std::isinf(norm_type)
                ? Largest(different)
                : std::accumulate(different.begin(), different.end(), 0.0);
      }
    }
  }

 private:
  struct Root {
    DeviceMesh mesh;
    std::vector<size_t> slots = {};
    Tensor parts = {};  // [ranks, slots and one more]
  };
  std::vector<Root> roots_;
};

absl::StatusOr<double> NormOf(const LocalGrads& local, double norm_type) {
  RankContext& context = RankContext::Current();
  // One slot for each mesh, and the last for plain gradients.
  const auto num_meshes = static_cast<int>(local.meshes.size());
  const Tensor parts = Zeros({num_meshes + 1}, kFloat64);
  VisitRuns(
      local.grads,
      [](const LocalGrad& a, const LocalGrad& b) {
        return a.mesh == b.mesh && a.owned == b.owned;
      },
      [&](const LocalGrad& first, const Tensor& run) {
        if (!first.owned) return;
        AddPart(run, norm_type, parts,
                first.mesh < 0 ? num_meshes : first.mesh);
      });

  Stream& stream = context.current_stream();
  for (int m = 0; m < num_meshes; ++m) {
    const DeviceMesh& mesh = local.meshes[static_cast<size_t>(m)];
    CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(mesh));
    double* const part =
        context.device().is_meta() ? nullptr : parts.data<double>() + m;
    CH_RETURN_IF_ERROR(
        AllReduce(*comm, part, 1, kFloat64,
                  std::isinf(norm_type) ? ReduceOp::kMax : ReduceOp::kSum,
                  stream, "clip_grad_norm"));
  }
  Slices slices(local.meshes);
  CH_RETURN_IF_ERROR(slices.Gather(parts, stream));
  if (context.device().is_meta()) return 0.0;

  std::vector<double> values = parts.ToVector<double>();
  CH_RETURN_IF_ERROR(context.status());
  slices.AddTo(values, norm_type);
  CH_RETURN_IF_ERROR(context.status());
  if (std::isinf(norm_type)) return Largest(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return norm_type == 2 ? std::sqrt(sum) : std::pow(sum, 1 / norm_type);
}

// As torch.nn.utils.clip_grad_norm_ has it.
void ScaleTo(double max_norm, double norm,
             const std::vector<LocalGrad>& grads) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return;
  VisitAllRuns(grads, [&](const Tensor& run) { MulInPlace(run, factor); });
}

absl::Status CheckNormType(double norm_type) {
  if (norm_type > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a norm of gradients is of a type above 0, or infinity, not ",
      norm_type));
}

absl::Status CheckMaxNorm(double max_norm) {
  if (max_norm >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "gradients are clipped to a norm of at least 0, or infinity to measure "
      "only, not ",
      max_norm));
}

}  // namespace

absl::StatusOr<double> GradNorm(absl::Span<Parameter* const> parameters,
                                double norm_type) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  CH_RETURN_IF_ERROR(CheckNormType(norm_type));
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const LocalGrads local,
                      CollectLocalGrads(parameters, "measure"));
  return NormOf(local, norm_type);
}

absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  CH_RETURN_IF_ERROR(CheckMaxNorm(max_norm));
  CH_RETURN_IF_ERROR(CheckNormType(options.norm_type));
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const LocalGrads local,
                      CollectLocalGrads(parameters, "clip"));
  CH_ASSIGN_OR_RETURN(const double norm, NormOf(local, options.norm_type));
  if (!std::isfinite(norm)) {
    if (options.error_if_nonfinite) return NotFinite(local.grads, norm);
    return static_cast<float>(norm);
  }
  ScaleTo(max_norm, norm, local.grads);
  return static_cast<float>(norm);
}

absl::Status ScaleGradsToNorm(absl::Span<Parameter* const> parameters,
                              double max_norm, double total_norm) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  CH_RETURN_IF_ERROR(CheckMaxNorm(max_norm));
  if (!std::isfinite(total_norm) || total_norm < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients cannot be scaled by the norm ", total_norm));
  }
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const LocalGrads local,
                      CollectLocalGrads(parameters, "clip"));
  ScaleTo(max_norm, total_norm, local.grads);
  return absl::OkStatus();
}

absl::Status ClipGradValue(absl::Span<Parameter* const> parameters,
                           double max_value) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  if (!(max_value >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradients are clipped to a value of at least 0, not ", max_value));
  }
  const NoGrad no_grad;
  CH_ASSIGN_OR_RETURN(const LocalGrads local,
                      CollectLocalGrads(parameters, "clip"));
  VisitAllRuns(local.grads, [&](const Tensor& run) {
    CopyInPlace(run, Maximum(Minimum(run, max_value), -max_value));
  });
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
