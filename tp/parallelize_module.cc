// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/parallelize_module.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/communicator.h"
#include "crosshatch/dtensor/distribute_from.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/mesh_communicator.h"
#include "crosshatch/nn/materialize.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tp/style_parts.h"

namespace crosshatch::tp {
namespace {

constexpr char kAttachment[] = "tp";

// The style that a module has.
class Styled final : public nn::Attachment {
 public:
  explicit Styled(Style style) : style_(std::move(style)) {}
  const ParallelStyle& style() const { return *style_; }

 private:
  const Style style_;
};

// What the plan says of one module; no style where it says nothing.
struct Assigned {
  nn::NamedModule named;
  Style style;
  std::string pattern;
};

std::string Quoted(const std::string& name) {
  return absl::StrCat("\"", name, "\"");
}

absl::StatusOr<std::vector<Assigned>> Assign(nn::Module& root,
                                             const ParallelPlan& plan) {
  std::vector<Assigned> modules;
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
    for (Assigned& module : modules) {
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
  for (const Assigned& module : modules) {
    const auto* styled =
        static_cast<Styled*>(module.named.module->attachment(kAttachment));
    if (styled == nullptr || module.style == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ParallelizeModule: module ", Quoted(module.named.name), " has ",
        styled->style().name(), " already, and the pattern ",
        Quoted(module.pattern), " gives it ", module.style->name()));
  }
  return modules;
}

// What `module` has or is about to get; null for none.
const ParallelStyle* StyleOf(const Assigned& module) {
  if (module.style != nullptr) return module.style.get();
  const auto* styled =
      static_cast<Styled*>(module.named.module->attachment(kAttachment));
  return styled == nullptr ? nullptr : &styled->style();
}

std::string Described(const Assigned& module) {
  const ParallelStyle* style = StyleOf(module);
  return absl::StrCat("module ", Quoted(module.named.name), " (",
                      style == nullptr ? "no style" : style->name(), ")");
}

// Of its own, parameters or buffers.
bool HasPlainParameters(const nn::Module& module) {
  const auto is_plain = [](const auto& entry) {
    return !entry.second->data().is_distributed();
  };
  return std::any_of(module.own_parameters().begin(),
                     module.own_parameters().end(), is_plain) ||
         std::any_of(module.own_buffers().begin(), module.own_buffers().end(),
                     is_plain);
}

// Whether a tensor that lies as `a` may lie as `b`, of any number of dims.
bool MayBeEqual(const Placement& a, const Placement& b) {
  const bool from_other_ends =
      a.is_shard() && b.is_shard() && (a.dim() < 0) != (b.dim() < 0);
  return from_other_ends || a == b;
}

// Whether a style above spreads what is left below it.
bool IsSpreadFromAbove(const Assigned& module,
                       absl::Span<const Assigned> modules) {
  for (const nn::Module* above = module.named.module->parent();
       above != nullptr; above = above->parent()) {
    for (const Assigned& other : modules) {
      if (other.named.module != above) continue;
      const ParallelStyle* style = StyleOf(other);
      if (style != nullptr && style->SpreadsBelow()) return true;
    }
  }
  return false;
}

absl::Status CheckFlow(const Assigned& from, const Assigned& to,
                       absl::Span<const Assigned> modules,
                       const ParallelizeOptions& options) {
  const ParallelStyle* giver = StyleOf(from);
  if (giver == nullptr) return absl::OkStatus();
  const std::optional<HandedOut> output =
      giver->FirstOutput(*from.named.module);
  if (!output.has_value()) return absl::OkStatus();
  const ParallelStyle* taker = StyleOf(to);
  if (!output->plain) {
    if (taker != nullptr || options.replicate_rest ||
        !HasPlainParameters(*to.named.module) ||
        IsSpreadFromAbove(to, modules)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "ParallelizeModule: ", Described(from),
        " hands out a distributed tensor (", output->placement.ToString(),
        ") and ", Described(to),
        ", which comes next, has plain parameters; give it a style, or "
        "replicate the rest (ParallelizeOptions::replicate_rest)"));
  }
  if (taker == nullptr) return absl::OkStatus();
  const std::optional<Placement> input = taker->PlainInput(*to.named.module);
  if (!input.has_value() || MayBeEqual(output->placement, *input)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ParallelizeModule: ", Described(from),
                   " hands out a plain tensor that lies as ",
                   output->placement.ToString(), ", and ", Described(to),
                   ", which comes next, takes it as ", input->ToString(),
                   "; let one of them say what the other does, or leave "
                   "out use_local_output"));
}

absl::StatusOr<std::vector<const Assigned*>> Matching(
    absl::Span<const Assigned> modules, const std::string& pattern) {
  std::vector<const Assigned*> matching;
  for (const Assigned& module : modules) {
    if (nn::MatchesName(pattern, module.named.name)) {
      matching.push_back(&module);
    }
  }
  if (matching.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ParallelizeModule: the pattern ", Quoted(pattern),
                     " of a flow matches no module"));
  }
  return matching;
}

absl::Status CheckFlows(absl::Span<const Assigned> modules,
                        const ParallelizeOptions& options) {
  for (const auto& [from, to] : options.flows) {
    CH_ASSIGN_OR_RETURN(const std::vector<const Assigned*> givers,
                        Matching(modules, from));
    CH_ASSIGN_OR_RETURN(const std::vector<const Assigned*> takers,
                        Matching(modules, to));
    const size_t count = std::max(givers.size(), takers.size());
    if (std::min(givers.size(), takers.size()) != count && givers.size() != 1 &&
        takers.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ParallelizeModule: in the flow from ", Quoted(from), " to ",
          Quoted(to), " ", givers.size(), " modules stand before ",
          takers.size(), "; they go in pairs, or one of them with all"));
    }
    for (size_t i = 0; i < count; ++i) {
      CH_RETURN_IF_ERROR(CheckFlow(*givers[givers.size() == 1 ? 0 : i],
                                   *takers[takers.size() == 1 ? 0 : i], modules,
                                   options));
    }
  }
  return absl::OkStatus();
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
  module.AddPreHook([mesh](nn::Module&, TensorList& inputs) {
    for (Tensor& input : inputs) {
      if (!input.defined() || input.is_distributed()) continue;
      if (IsFloatingPoint(input.dtype())) input = Bring(input, mesh, {});
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

}  // namespace

absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan,
                               const ParallelizeOptions& options) {
  if (mesh.ndim() != 1 || !mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ParallelizeModule takes a mesh of one axis that this rank is on, not ",
        mesh.ToString(), "; slice one: mesh.Slice(\"tp\")"));
  }
  CH_ASSIGN_OR_RETURN(std::vector<Assigned> modules, Assign(root, plan));
  for (const Assigned& module : modules) {
    if (module.style == nullptr) continue;
    CH_RETURN_IF_ERROR(
        module.style->Check(*module.named.module, module.named.name));
  }
  CH_RETURN_IF_ERROR(CheckFlows(modules, options));
  // Names the parameters, for the messages of styles.
  root.NamedParameters();
  if (options.source_rank.has_value()) {
    CH_RETURN_IF_ERROR(SendFrom(*options.source_rank, root, mesh));
  }
  // Those below come first: a style that takes what is left below its module
  // (ReplicateParallel) finds what is.
  std::reverse(modules.begin(), modules.end());
  for (const Assigned& module : modules) {
    if (module.style == nullptr) continue;
    CH_RETURN_IF_ERROR(
        module.style->Apply(*module.named.module, module.named.name, mesh));
    module.named.module->Attach(kAttachment,
                                std::make_shared<Styled>(module.style));
  }
  if (!options.replicate_rest) return absl::OkStatus();
  for (const Assigned& module : modules) {
    if (StyleOf(module) != nullptr) continue;
    CH_RETURN_IF_ERROR(ReplicateModule(*module.named.module, mesh));
  }
  return absl::OkStatus();
}

}  // namespace crosshatch::tp
