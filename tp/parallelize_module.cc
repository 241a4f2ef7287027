// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tp/linear_styles.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

constexpr char kAttachment[] = "tp";

// The style that a plan applied to a module.
class AppliedStyle final : public nn::Attachment {
 public:
  explicit AppliedStyle(Style style) : style_(std::move(style)) {}
  const ParallelStyle& style() const { return *style_; }

 private:
  const Style style_;
};

const ParallelStyle* StyleOf(const nn::Module& module) {
  const auto* applied =
      static_cast<AppliedStyle*>(module.attachment(kAttachment));
  return applied == nullptr ? nullptr : &applied->style();
}

std::string Quoted(const std::string& name) {
  return absl::StrCat("\"", name, "\"");
}

absl::StatusOr<std::vector<StyledModule>> Assign(nn::Module& root,
                                                 const ParallelPlan& plan) {
  std::vector<StyledModule> modules;
  for (const nn::NamedModule& named : root.NamedModules()) {
    modules.push_back({.named = named});
  }
  for (const auto& [pattern, style] : plan) {
    if (style == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("ParallelizeModule: the pattern ", Quoted(pattern),
                       " has a null style"));
    }
    bool matched = false;
    for (StyledModule& module : modules) {
      const std::string& name = module.named.name;
      if (!nn::MatchesName(pattern, name)) continue;
      matched = true;
      if (module.style != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "ParallelizeModule: module ", Quoted(name), " is matched by ",
            Quoted(module.pattern), " for ", module.style->name(), " and by ",
            Quoted(pattern), " for ", style->name(),
            "; a module takes one style (tp::Combined makes one of several)"));
      }
      module.style = style;
      module.pattern = pattern;
    }
    if (!matched) {
      return absl::InvalidArgumentError(
          absl::StrCat("ParallelizeModule: the pattern ", Quoted(pattern),
                       " for ", style->name(), " matches no module"));
    }
  }
  for (const StyledModule& module : modules) {
    const ParallelStyle* applied = StyleOf(*module.named.module);
    if (applied == nullptr || module.style == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ParallelizeModule: module ", Quoted(module.named.name), " has ",
        applied->name(), " already, and the pattern ", Quoted(module.pattern),
        " gives it ", module.style->name()));
  }
  return modules;
}

// Copies the values of every plain parameter with memory from one rank.
absl::Status SendFrom(int source, nn::Module& root, const DeviceMesh& mesh) {
  if (source < 0 || source >= mesh.size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ParallelizeModule: source_rank ", source, " of ",
                     mesh.ToString(), ", which has ", mesh.size(0), " ranks"));
  }
  std::vector<nn::Parameter*> plain;
  std::string attached;
  for (nn::Parameter* parameter : root.Parameters()) {
    if (parameter->data().is_distributed()) continue;
    plain.push_back(parameter);
    attached += parameter->data().storage()->attached() ? '1' : '0';
  }
  // Ranks may differ in which parameters have memory, but all must agree on
  // what is sent.
  CH_ASSIGN_OR_RETURN(Communicator * communicator, MeshCommunicator(mesh));
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      communicator->Exchange(attached, "source_rank"));
  const std::string& there = all[static_cast<size_t>(source)];
  const NoGrad no_grad;
  const int world_rank = mesh.layout().ranks()[static_cast<size_t>(source)];
  for (size_t i = 0; i < plain.size(); ++i) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].size() == there.size() && all[rank][i] <= there[i]) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "ParallelizeModule: parameter ", plain[i]->name(),
          " has memory on rank ", rank, " along ", mesh.ToString(),
          " and none on source_rank ", source,
          ", whose values are to count; materialize or load it there"));
    }
    if (there[i] == '0') continue;
    nn::LeaseParameters({&plain[i], 1});
    const Tensor& data = plain[i]->data();
    const Tensor sent = DistributeTensorFrom(
        world_rank, data, mesh, Layout::Replicated(mesh.layout(), data.ndim()));
    CopyInPlace(data, LocalTensor(sent));
  }
  return RankContext::Current().Synchronize();
}

// Replicates a module without a style, if it has parameters or buffers.
absl::Status ReplicateModule(nn::Module& module, const DeviceMesh& mesh) {
  const auto is_plain = [](const auto& entry) {
    return !entry.second->data().is_distributed();
  };
  if (!absl::c_any_of(module.own_parameters(), is_plain) &&
      !absl::c_any_of(module.own_buffers(), is_plain)) {
    return absl::OkStatus();
  }
  for (const auto& [name, parameter] : module.own_parameters()) {
    if (parameter->data().is_distributed()) continue;
    CH_RETURN_IF_ERROR(DistributeParameter(*parameter, mesh, Replicate()));
  }
  CH_RETURN_IF_ERROR(ReplicateOwnBuffers(module, mesh));
  module.AddPreHook([mesh](nn::Module&, TensorList& inputs) {
    for (Tensor& input : inputs) {
      if (!input.defined() || input.is_distributed()) continue;
      if (!IsFloatingPoint(input.dtype())) continue;
      input = RedistributeActivation(input, mesh, {});
    }
  });
  module.AddPostHook([](nn::Module&, TensorSpan, TensorList& outputs) {
    for (Tensor& output : outputs) {
      if (!output.defined() || !output.is_distributed()) continue;
      output = WithReducedGradient(output);
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan,
                               const ParallelizeOptions& options) {
  if (mesh.ndim() != 1 || !mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ParallelizeModule takes a mesh of one axis that this rank is on, not ",
        mesh.ToString(), "; slice one: mesh.Slice(\"tp\")"));
  }
  CH_ASSIGN_OR_RETURN(std::vector<StyledModule> modules, Assign(root, plan));
  for (const StyledModule& module : modules) {
    if (module.style == nullptr) continue;
    CH_RETURN_IF_ERROR(
        module.style->Check(*module.named.module, module.named.name));
  }
  CH_RETURN_IF_ERROR(CheckLocalHeads(modules, mesh.size()));
  // Gives the parameters the names that messages of styles use.
  root.NamedParameters();
  if (options.source_rank.has_value()) {
    CH_RETURN_IF_ERROR(SendFrom(*options.source_rank, root, mesh));
  }
  // Children first: ReplicateParallel takes the parameters below its module
  // that no other style has distributed.
  std::reverse(modules.begin(), modules.end());
  for (const auto& [named, style, pattern] : modules) {
    if (style == nullptr) continue;
    CH_RETURN_IF_ERROR(style->Apply(*named.module, named.name, mesh));
    named.module->Attach(kAttachment, std::make_shared<AppliedStyle>(style));
  }
  if (!options.replicate_rest) return absl::OkStatus();
  for (const StyledModule& module : modules) {
    if (StyleOf(*module.named.module) != nullptr) continue;
    CH_RETURN_IF_ERROR(ReplicateModule(*module.named.module, mesh));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::tp
