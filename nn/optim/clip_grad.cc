// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/gradients.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cast.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/reduce.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Returns the error for a norm that is not finite.
absl::Status NotFinite(const std::vector<LocalGrad>& grads,
                       const std::string& start) {
  for (const LocalGrad& grad : grads) {
    for (double value : grad.local.ToVector<double>()) {
      if (std::isfinite(value)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(start, ": that of ",
                       grad.parameter->name().empty() ? "an unnamed parameter"
                                                      : grad.parameter->name(),
                       " holds ", value));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(start, ": another rank holds the part that is not finite"));
}

/// Adds the contribution of `run` to parts[slot]: a sum of powers, or the
/// largest magnitude if `norm_type` is infinity.
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

/// Returns the maximum, or NaN if there is one. Engines differ in how their
/// maximum treats NaN.
double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

/// Returns whether `next`, which is at least `part`, is the same sum up to the
/// order of additions, which differs between processors and libraries. An
/// infinite part equals only itself.
bool AreOfCopies(double part, double next) {
  return part == next || (std::isfinite(next) && next - part <= 1e-9 * next);
}

/// Joins one parameter's parts from all ranks of a root mesh. Replicas count
/// once.
double JoinSlices(std::vector<double> parts, double norm_type) {
  const double largest = Largest(parts);
  if (std::isinf(norm_type) || std::isnan(largest)) return largest;
  std::sort(parts.begin(), parts.end());
  double sum = 0;
  double counted = -1;
  for (const double part : parts) {
    if (AreOfCopies(counted, part)) continue;
    counted = part;
    sum += part;
  }
  return sum;
}

bool IsSlice(const DeviceMesh& mesh) {
  return mesh.size() != mesh.root().size();
}

// Offsets of the parts of the norm: those of each mesh, and a last one for
// plain gradients. If a mesh is a slice, other slices may hold replicas of a
// parameter or other tensors, such as other experts. Each parameter on a slice
// therefore has its own part, even without a gradient, because parts are
// compared by index. The last slot of each mesh is not counted. It only shows
// whether replicas that other ranks count, or plain gradients, are finite.
class Slots {
 public:
  explicit Slots(const LocalGrads& local) {
    for (size_t m = 0; m < local.meshes.size(); ++m) {
      begins_.push_back(
          begins_.back() +
          (IsSlice(local.meshes[m]) ? local.num_parameters[m] : 1) + 1);
    }
  }

  int size() const { return begins_.back() + 1; }
  int begin(size_t mesh) const { return begins_[mesh]; }
  int count(size_t mesh) const { return uncounted(mesh) - begins_[mesh]; }
  int uncounted(size_t mesh) const { return begins_[mesh + 1] - 1; }
  int plain() const { return begins_.back(); }
  int Of(const LocalGrad& grad) const {
    if (grad.mesh < 0) return plain();
    const auto mesh = static_cast<size_t>(grad.mesh);
    if (!grad.owned) return uncounted(mesh);
    return begin(mesh) + (count(mesh) == 1 ? 0 : grad.place);
  }

 private:
  std::vector<int> begins_ = {0};
};

// The root meshes of slices. Every rank computes the same norm from the parts
// of all their ranks.
class Slices {
 public:
  Slices(const std::vector<DeviceMesh>& meshes, const Slots& slots) {
    for (size_t m = 0; m < meshes.size(); ++m) {
      if (!IsSlice(meshes[m])) continue;
      const DeviceMesh root = meshes[m].root();
      auto found = std::find_if(roots_.begin(), roots_.end(),
                                [&](const Root& r) { return r.mesh == root; });
      if (found == roots_.end()) {
        found = roots_.insert(roots_.end(), {.mesh = root});
      }
      for (int i = 0; i < slots.count(m); ++i) {
        found->slots.push_back(static_cast<size_t>(slots.begin(m) + i));
      }
      found->uncounted.push_back(static_cast<size_t>(slots.uncounted(m)));
    }
  }

  absl::Status Gather(const Tensor& parts, Stream& stream) {
    for (Root& root : roots_) {
      CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(root.mesh));
      root.parts = Zeros({root.mesh.size(), parts.numel()}, kFloat64);
      CH_RETURN_IF_ERROR(AllGather(
          *comm, parts.raw_data(), root.parts.raw_data(), parts.numel(),
          kFloat64, stream,
          absl::StrCat(
              "clip_grad_norm: ", root.slots.size(),
              " trained parameters on slices; must be equal on all ranks of ",
              root.mesh.ToString())));
    }
    return absl::OkStatus();
  }

  // Replaces the parts of a slice by those of all slices.
  void AddTo(std::vector<double>& values, double norm_type) const {
    for (const Root& root : roots_) {
      const std::vector<double> all = root.parts.ToVector<double>();
      std::vector<double> of_ranks;
      for (const size_t slot : root.slots) {
        of_ranks.clear();
        for (size_t at = slot; at < all.size(); at += values.size()) {
          of_ranks.push_back(all[at]);
        }
        values[slot] = JoinSlices(of_ranks, norm_type);
      }
      for (const size_t slot : root.uncounted) {
        for (size_t at = slot; at < all.size(); at += values.size()) {
          if (!std::isfinite(all[at])) values[slot] = all[at];
        }
      }
    }
  }

 private:
  struct Root {
    DeviceMesh mesh;
    std::vector<size_t> slots = {};
    std::vector<size_t> uncounted = {};
    Tensor parts = {};  // [ranks, slots of all meshes]
  };
  std::vector<Root> roots_;
};

absl::StatusOr<double> NormOf(const LocalGrads& local, double norm_type) {
  RankContext& context = RankContext::Current();
  const Slots slots(local);
  const Tensor parts = Zeros({slots.size()}, kFloat64);
  VisitRuns(
      local.grads,
      [&](const LocalGrad& a, const LocalGrad& b) {
        return slots.Of(a) == slots.Of(b);
      },
      [&](const LocalGrad& first, const Tensor& run) {
        AddPart(run, norm_type, parts, slots.Of(first));
      });
  const auto part_at = [&](int slot) {
    return MakeView(parts.storage(), slot, {}, {}, kFloat64);
  };
  const bool any_plain =
      std::any_of(local.grads.begin(), local.grads.end(),
                  [](const LocalGrad& grad) { return grad.mesh < 0; });
  for (size_t m = 0; any_plain && m < local.meshes.size(); ++m) {
    AddInPlace(part_at(slots.uncounted(m)), part_at(slots.plain()), 0);
  }

  Stream& stream = context.current_stream();
  for (size_t m = 0; m < local.meshes.size(); ++m) {
    CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(local.meshes[m]));
    double* of_mesh = parts.data<double>();  // Null in a dry run.
    if (of_mesh != nullptr) of_mesh += slots.begin(m);
    CH_RETURN_IF_ERROR(
        AllReduce(*comm, of_mesh, slots.count(m) + 1, kFloat64,
                  std::isinf(norm_type) ? ReduceOp::kMax : ReduceOp::kSum,
                  stream, "clip_grad_norm"));
  }
  Slices slices(local.meshes, slots);
  CH_RETURN_IF_ERROR(slices.Gather(parts, stream));
  if (context.device().is_meta()) return 0.0;

  std::vector<double> values = parts.ToVector<double>();
  CH_RETURN_IF_ERROR(context.status());
  slices.AddTo(values, norm_type);
  CH_RETURN_IF_ERROR(context.status());
  bool is_uncounted_finite = true;
  for (size_t m = 0; m < local.meshes.size(); ++m) {
    double& uncounted = values[static_cast<size_t>(slots.uncounted(m))];
    is_uncounted_finite = is_uncounted_finite && std::isfinite(uncounted);
    uncounted = 0;
  }
  const auto norm_of = [&] {
    if (std::isinf(norm_type)) return Largest(values);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return norm_type == 2 ? std::sqrt(sum) : std::pow(sum, 1 / norm_type);
  };
  const double norm = norm_of();
  if (is_uncounted_finite || !std::isfinite(norm)) return norm;
  return NotFinite(
      local.grads,
      absl::StrCat("ranks differ in a gradient: its norm is ", norm,
                   " on this rank, and a replica of it is "
                   "not finite"));
}

// Sends this rank's error to all ranks of `over`, which wait for it.
absl::StatusOr<double> NormOver(const absl::StatusOr<LocalGrads>& local,
                                double norm_type,
                                const std::optional<DeviceMesh>& over) {
  const absl::StatusOr<double> norm =
      local.ok() ? NormOf(*local, norm_type) : local.status();
  if (!over.has_value()) return norm;
  if (!local.ok()) return JoinNorms(*over, {}, norm, norm_type);
  return JoinNorms(*over, local->meshes, norm, norm_type);
}

// Scales as torch.nn.utils.clip_grad_norm_ does.
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
                                double norm_type,
                                const std::optional<DeviceMesh>& over) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  CH_RETURN_IF_ERROR(CheckNormType(norm_type));
  const NoGrad no_grad;
  return NormOver(CollectLocalGrads(parameters, "measure"), norm_type, over);
}

absl::StatusOr<float> ClipGradNorm(absl::Span<Parameter* const> parameters,
                                   double max_norm,
                                   const ClipGradNormOptions& options) {
  CH_RETURN_IF_ERROR(RankContext::Current().status());
  CH_RETURN_IF_ERROR(CheckMaxNorm(max_norm));
  CH_RETURN_IF_ERROR(CheckNormType(options.norm_type));
  const NoGrad no_grad;
  const absl::StatusOr<LocalGrads> local =
      CollectLocalGrads(parameters, "clip");
  CH_ASSIGN_OR_RETURN(const double norm,
                      NormOver(local, options.norm_type, options.over));
  if (!std::isfinite(norm)) {
    if (options.error_if_nonfinite) {
      return NotFinite(local->grads,
                       absl::StrCat("the norm of the gradients is ", norm));
    }
    return static_cast<float>(norm);
  }
  ScaleTo(max_norm, norm, local->grads);
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
