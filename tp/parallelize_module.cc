// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/verify.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tp/check_flows.h"
#include "crosshatch/tp/handed_out.h"
#include "crosshatch/tp/style_parts.h"
#include "crosshatch/tp/styled_module.h"

namespace crosshatch::tp {
namespace {

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
    const ParallelStyle* laid = LaidStyle(*module.named.module);
    if (laid == nullptr || module.style == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ParallelizeModule: module ", Quoted(module.named.name), " has ",
        laid->name(), " already, and the pattern ", Quoted(module.pattern),
        " gives it ", module.style->name()));
  }
  return modules;
}

// Gives every plain parameter that has memory on one rank its values there.
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
  // Ranks may differ in what has memory; what is sent all have to know.
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

// A module that no style touches, on the mesh with the others.
absl::Status ReplicateModule(nn::Module& module, const DeviceMesh& mesh) {
  if (!HasPlainParameters(module)) return absl::OkStatus();
  for (const auto& [name, parameter] : module.own_parameters()) {
    if (parameter->data().is_distributed()) continue;
    CH_RETURN_IF_ERROR(SpreadParameter(*parameter, mesh, Replicate()));
  }
  CH_RETURN_IF_ERROR(ReplicateOwnBuffers(module, mesh));
  module.AddPreHook([mesh](nn::Module& called, TensorList& inputs) {
    for (Tensor& input : inputs) {
      if (!input.defined() || input.is_distributed()) continue;
      if (!IsFloatingPoint(input.dtype())) continue;
      input = TakeIn(input, mesh, {}, called, "no style");
    }
  });
  module.AddPostHook([](nn::Module&, TensorSpan, TensorList& outputs) {
    for (Tensor& output : outputs) {
      if (!output.defined() || !output.is_distributed()) continue;
      output = WithWholeGradient(output);
    }
  });
  return absl::OkStatus();
}

// Compares, the first time that a module of a plan takes a plain tensor as
// equal on all ranks, whether it is: ids that no op on the mesh takes come to
// light there.
class FirstPlainInput {
 public:
  void Take(const Tensor& input, const DeviceMesh& mesh,
            const Placement& placement) {
    if (was_compared_ || !placement.is_replicate() || !input.defined() ||
        input.is_distributed() || !IsFloatingPoint(input.dtype()) ||
        RankContext::Current().dry_run()) {
      return;
    }
    was_compared_ = true;
    CompareReplicasOnce("the plain input", input, mesh,
                        Layout::Replicated(mesh.layout(), input.ndim()),
                        input.sizes());
  }

 private:
  bool was_compared_ = false;
};

// Applies the module's style, between hooks that watch what comes to it and
// what goes on as plain tensors: of a program's own style what it tells, which
// is of the first input and the first output. Ours watch all that they bring
// (TakeIn, HandOut).
absl::Status Lay(const StyledModule& styled, const DeviceMesh& mesh,
                 const std::shared_ptr<FirstPlainInput>& first) {
  nn::Module& module = *styled.named.module;
  const ParallelStyle& style = *styled.style;
  const char* const name = style.name();
  if (const auto input = style.PlainInput(module)) {
    module.AddPreHook([mesh, name, first, placement = *input](
                          nn::Module& called, TensorList& inputs) {
      if (inputs.empty()) return;
      CheckTaken(inputs[0], mesh, placement, called, name);
      first->Take(inputs[0], mesh, placement);
    });
  }
  CH_RETURN_IF_ERROR(style.Apply(module, styled.named.name, mesh));
  if (const auto input = style.HandedIn(module); input && input->plain) {
    module.AddPreHook([mesh, name, placement = input->placement](
                          nn::Module& called, TensorList& inputs) {
      if (inputs.empty()) return;
      NoteHandedOut(inputs[0], mesh, placement, called, name);
    });
  }
  if (const auto output = style.FirstOutput(module); output && output->plain) {
    module.AddPostHook(
        [mesh, name, placement = output->placement](
            nn::Module& called, TensorSpan, TensorList& outputs) {
          if (outputs.empty()) return;
          NoteHandedOut(outputs[0], mesh, placement, called, name);
        });
  }
  SetLaidStyle(module, styled.style);
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
  CH_RETURN_IF_ERROR(
      CheckFlows(modules, options.flows, options.replicate_rest));
  // Names the parameters, for the messages of styles.
  root.NamedParameters();
  if (options.source_rank.has_value()) {
    CH_RETURN_IF_ERROR(SendFrom(*options.source_rank, root, mesh));
  }
  // Those below come first: a style that takes what is left below its module
  // (ReplicateParallel) finds what is.
  std::reverse(modules.begin(), modules.end());
  const auto first = std::make_shared<FirstPlainInput>();
  for (const StyledModule& module : modules) {
    if (module.style == nullptr) continue;
    CH_RETURN_IF_ERROR(Lay(module, mesh, first));
  }
  if (!options.replicate_rest) return absl::OkStatus();
  for (const StyledModule& module : modules) {
    if (StyleOf(module) != nullptr) continue;
    CH_RETURN_IF_ERROR(ReplicateModule(*module.named.module, mesh));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::tp
