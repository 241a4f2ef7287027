// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

// Follows the name of a gradient that is not reduced over ranks yet
// (Parameter::gradient_is_pending).
constexpr char kNotReduced[] =
    " was not reduced: set fsdp::Settings::requires_gradient_sync and "
    "requires_all_reduce to true before the last backward of a step, or call "
    "FinalizeBackward after it if manual_finalization is set";

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

// The message of a rank.
struct Said {
  std::string ranks;
  double norm = 0;
  absl::Status status;
};

Said Parse(const std::string& text) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(';', 3));
  CH_CHECK_EQ(parts.size(), 4u) << text;
  uint64_t bits = 0;
  int code = 0;
  CH_CHECK(absl::SimpleAtoi(parts[1], &bits) &&
           absl::SimpleAtoi(parts[2], &code))
      << text;
  return {parts[0], std::bit_cast<double>(bits),
          absl::Status(static_cast<absl::StatusCode>(code), parts[3])};
}

// Returns whether two ranks report the norm of the same gradients. Norms differ
// slightly between kinds of processors; see GradNorm.
bool AreEqualNorms(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         (std::isfinite(a) && std::isfinite(b) &&
          std::abs(a - b) <= 1e-9 * std::max(a, b));
}

}  // namespace

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
  double* const first = sums.data<double>();
  if (first == nullptr) return;  // A dry run.
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
  args.out.data = first + slot;
  args.out.dtype = kFloat64;
  args.mode = WriteMode::kAccumulate;
  internal::Launch(&KernelTable::reduce, args);
}

absl::StatusOr<double> JoinNorms(const DeviceMesh& over,
                                 absl::Span<const DeviceMesh> meshes,
                                 const absl::StatusOr<double>& norm,
                                 double norm_type) {
  CH_ASSIGN_OR_RETURN(Communicator * comm, MeshCommunicator(over));
  std::set<int> here;
  for (const DeviceMesh& mesh : meshes) {
    const DeviceMesh root = mesh.root();
    here.insert(root.layout().ranks().begin(), root.layout().ranks().end());
  }
  if (here.empty()) here.insert(over.world().world_rank());
  // A rank without a norm takes part, so that no other waits for it.
  const absl::StatusOr<std::vector<std::string>> texts = comm->Exchange(
      absl::StrCat(absl::StrJoin(here, ","), ";",
                   std::bit_cast<uint64_t>(norm.value_or(0)), ";",
                   norm.status().raw_code(), ";", norm.status().message()),
      "norms of gradients on different meshes");
  CH_RETURN_IF_ERROR(norm.status());
  CH_RETURN_IF_ERROR(texts.status());
  std::vector<Said> all;
  for (const std::string& text : *texts) {
    all.push_back(Parse(text));
    if (all.back().status.ok()) continue;
    return absl::Status(
        all.back().status.code(),
        absl::StrCat("on rank ", comm->world_ranks()[all.size() - 1], ": ",
                     all.back().status.message()));
  }
  // For each set of ranks, the first rank of `over` that reports it, and its
  // norm.
  std::map<std::string, int> first_of;
  std::map<std::string, double> norm_of;
  std::map<std::string, std::string> counted_in;
  double joined = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& ranks = all[i].ranks;
    const double value = all[i].norm;
    const int by = comm->world_ranks()[i];
    if (!first_of.try_emplace(ranks, by).second) {
      if (AreEqualNorms(norm_of[ranks], value)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the norm of gradients on different meshes: ranks ", first_of[ranks],
          " and ", by, " both have parameters on ranks ", ranks,
          ", with norms of ", norm_of[ranks], " and ", value,
          ": parameters that stages share on a mesh of all ranks do not "
          "combine with those of a stage; give the stages' parameters on "
          "slices of that mesh, without `over`"));
    }
    norm_of[ranks] = value;
    for (const absl::string_view rank : absl::StrSplit(ranks, ',')) {
      const auto& [at, is_new] =
          counted_in.try_emplace(std::string(rank), ranks);
      if (is_new) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the norm of gradients on different meshes: rank ",
          first_of[at->second], " has parameters on ranks ", at->second,
          ", and rank ", by, " on ranks ", ranks,
          ": each rank belongs to one set; give the ranks of a stage a world "
          "of their own (World::Subset)"));
    }
    if (std::isnan(joined) || std::isnan(value)) {
      joined = joined + value;
    } else if (std::isinf(norm_type)) {
      joined = std::max(joined, value);
    } else {
      joined += norm_type == 2 ? value * value : std::pow(value, norm_type);
    }
  }
  if (std::isinf(norm_type)) return joined;
  return norm_type == 2 ? std::sqrt(joined) : std::pow(joined, 1 / norm_type);
}

}  // namespace crosshatch::nn
