// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/fully_shard.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/default_extensions.h"
#include "crosshatch/fsdp/fsdp_state.h"
#include "crosshatch/fsdp/fsdp_tree.h"
#include "crosshatch/fsdp/param_group.h"
#include "crosshatch/fsdp/settings.h"
#include "crosshatch/fsdp/shard_modules.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/dtype.h"

namespace crosshatch::fsdp {
namespace {

// Returns the longest common prefix of the parameters' names that ends before a
// dot, usually the module's name; "root" if there is none.
std::string CommonPrefix(const std::vector<nn::Parameter*>& parameters) {
  std::string prefix = parameters.front()->name();
  for (const nn::Parameter* parameter : parameters) {
    const std::string& name = parameter->name();
    while (name.compare(0, prefix.size(), prefix) != 0) prefix.pop_back();
  }
  const size_t dot = prefix.rfind('.');
  return dot == std::string::npos ? "root" : prefix.substr(0, dot);
}

// A place in the module tree where a parameter is registered.
struct Use {
  const nn::Module* module;
  std::string name;
};
using Uses = std::map<const nn::Parameter*, std::vector<Use>>;

using Modules = absl::Span<nn::Module* const>;

// Adds the uses of `wanted` in the tree of `module` to `uses`. Every FullyShard
// call visits the whole tree, so names are built for matches only.
void FindUses(const nn::Module& module,
              const absl::flat_hash_set<const nn::Parameter*>& wanted,
              absl::flat_hash_set<const nn::Module*>& seen, Uses& uses) {
  if (!seen.insert(&module).second) return;
  for (const auto& [name, parameter] : module.own_parameters()) {
    if (!wanted.contains(parameter.get())) continue;
    const std::string path = module.FullName();
    uses[parameter.get()].push_back(
        {&module, path.empty() ? name : absl::StrCat(path, ".", name)});
  }
  for (const auto& [name, child] : module.children()) {
    FindUses(*child, wanted, seen, uses);
  }
}

// Returns the uses of the parameters of `modules` in the whole trees that
// contain them.
Uses UsesInTreesOf(Modules modules) {
  absl::flat_hash_set<const nn::Parameter*> wanted;
  std::vector<nn::Module*> roots;
  for (nn::Module* root : modules) {
    for (const nn::Parameter* parameter : root->Parameters()) {
      wanted.insert(parameter);
    }
    root = &nn::RootOf(*root);
    if (std::find(roots.begin(), roots.end(), root) == roots.end()) {
      roots.push_back(root);
    }
  }
  Uses uses;
  absl::flat_hash_set<const nn::Module*> seen;
  for (const nn::Module* root : roots) FindUses(*root, wanted, seen, uses);
  return uses;
}

std::set<const nn::Module*> Subtrees(Modules roots) {
  std::set<const nn::Module*> modules;
  for (nn::Module* root : roots) {
    for (const nn::NamedModule& named : root->NamedModules()) {
      modules.insert(named.module);
    }
  }
  return modules;
}

// Returns the first use outside of `modules`; null if there is none.
const Use* UseOutside(const std::vector<Use>& uses,
                      const std::set<const nn::Module*>& modules) {
  for (const Use& use : uses) {
    if (modules.count(use.module) == 0) return &use;
  }
  return nullptr;
}

// Returns "tied with a, b" for a parameter with several uses. The first use is
// omitted: it names the parameter.
std::string TieNote(const std::vector<Use>& uses) {
  std::string note;
  for (size_t i = 1; i < uses.size(); ++i) {
    absl::StrAppend(&note, i == 1 ? "tied with " : ", ", uses[i].name);
  }
  return note;
}

// Parameters of `modules` that have no group yet, each once.
struct Sorted {
  std::vector<nn::Parameter*> to_shard;
  FsdpState::OmittedParameters omitted;
};

// Returns the label of the nearest sharded ancestor of `module`, for messages.
std::string ShardedAbove(const nn::Module& module) {
  for (const nn::Module* at = module.parent(); at != nullptr;
       at = at->parent()) {
    if (FsdpState::Of(*at) != nullptr) return *at->label();
  }
  return "another module";
}

// Sorts the parameters of `modules` that have no group yet.
absl::StatusOr<Sorted> SortParameters(Modules modules, const Uses& uses,
                                      const FullyShardOptions& options) {
  std::set<const nn::Parameter*> claimed;
  for (const FsdpState* state : FsdpState::AllBelow(modules)) {
    const std::set<const nn::Module*> below = Subtrees(state->modules());
    for (const auto& group : state->groups()) {
      for (const nn::Parameter* p : group->parameters()) {
        if (const Use* other = UseOutside(uses.at(p), below)) {
          return absl::FailedPreconditionError(absl::StrCat(
              "FullyShard: parameter ", p->name(), " is tied with ",
              other->name, ", but was sharded with the group ", group->name(),
              " before both were in the module tree; register all modules "
              "first, then call FullyShard bottom-up"));
        }
        claimed.insert(p);
      }
    }
  }
  std::vector<nn::Parameter*> parameters;
  for (nn::Module* module : modules) {
    for (const nn::NamedModule& named : module->NamedModules()) {
      if (!FsdpState::IsReplicated(*named.module)) continue;
      const std::set<const nn::Module*> inside = Subtrees({named.module});
      for (const nn::Parameter* p : named.module->Parameters()) {
        if (UseOutside(uses.at(p), inside) == nullptr) claimed.insert(p);
      }
    }
    for (nn::Parameter* p : module->Parameters()) parameters.push_back(p);
  }
  const std::set<const nn::Module*> below = Subtrees(modules);
  Sorted sorted;
  for (nn::Parameter* p : parameters) {
    if (!claimed.insert(p).second) continue;
    if (p->gathered().defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "FullyShard: parameter ", p->name(), " of ", *modules[0]->label(),
          " is in the group of ", ShardedAbove(*modules[0]),
          ", which was sharded before; call FullyShard bottom-up: blocks "
          "first, "
          "then the whole model"));
    }
    const auto& ignored = options.ignored_params;
    if (std::find(ignored.begin(), ignored.end(), p) != ignored.end()) {
      sorted.omitted.ignored.push_back(p->shared_from_this());
    } else if (UseOutside(uses.at(p), below) != nullptr) {
      sorted.omitted.tied.push_back(p);
    } else {
      sorted.to_shard.push_back(p);
    }
  }
  return sorted;
}

// Whether a parameter has gather hooks, and what they do.
enum class GatherKind { kPlain, kHooked, kHookedWithPost };

GatherKind GatherKindOf(const nn::Parameter& parameter,
                        const FullyShardOptions& options) {
  if (!options.gather_hooks) return GatherKind::kPlain;
  const auto hooks = options.gather_hooks(parameter);
  if (hooks == nullptr) return GatherKind::kPlain;
  return hooks->has_post_all_gather() ? GatherKind::kHookedWithPost
                                      : GatherKind::kHooked;
}

// Properties that all parameters of a group share: its buffers have one dtype,
// one gather dtype and one mesh, and all or none have gradients.
struct Kind {
  DType dtype;
  DType param_dtype;
  GatherKind gathers;
  bool trained;
  DeviceMesh mesh;
  friend bool operator==(const Kind&, const Kind&) = default;
};

// Describes why a group of `kind` is separate from `other`, the first group of
// the module.
std::string SeparationReason(const Kind& kind, const Kind& other,
                             const std::string& other_name) {
  std::string why = absl::StrCat("separate from ", other_name, ": ");
  const char* separator = "";
  const auto add = [&](bool differs, const char* what) {
    if (differs) absl::StrAppend(&why, separator, what);
    if (differs) separator = ", ";
  };
  add(kind.dtype != other.dtype, "dtype");
  add(kind.dtype == other.dtype && kind.param_dtype != other.param_dtype,
      "dtype gathered in");
  add(kind.gathers != other.gathers, "gather hooks");
  add(kind.mesh != other.mesh, "mesh");
  add(kind.trained != other.trained, kind.trained ? "trained" : "frozen");
  return why;
}

const ShardExtension& ExtensionFor(
    const std::vector<nn::Parameter*>& parameters,
    const FullyShardOptions& options, bool replicated) {
  if (options.extension != nullptr) return *options.extension;
  const bool any_distributed =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const auto* p) { return p->data().is_distributed(); });
  return any_distributed && !replicated ? DTensorExtension() : PlainExtension();
}

// Returns `mesh` with its axes in the order (replicate, shard), or (shard). One
// of `of_parameter` may lack replicate_axis if it is 1-D.
absl::StatusOr<DeviceMesh> WithRoleOrder(const DeviceMesh& mesh,
                                         const FullyShardOptions& options,
                                         bool of_parameter) {
  if (mesh.ndim() > 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard takes a mesh of one axis (shard) or two (replicate, "
        "shard), not ",
        mesh.ToString()));
  }
  if (!mesh.coordinate().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard: this rank is not on ", mesh.ToString()));
  }
  const std::string& replicate = options.replicate_axis;
  if (replicate.empty()) return mesh;
  const absl::Span<const std::string> names = mesh.axis_names();
  const bool has = mesh.layout().AxisIndex(replicate).ok();
  if (!has && of_parameter && mesh.ndim() == 1) return mesh;
  if (!has || mesh.ndim() == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("FullyShard: replicate_axis \"", replicate, "\" is ",
                     has ? "the only axis" : "no axis", " of ", mesh.ToString(),
                     has ? ", which leaves none to shard over" : ""));
  }
  if (names[0] == replicate) return mesh;
  return mesh.Slice({names[1], names[0]});
}

// Checks that the default divisor of the gradients, the size of `mesh`, is
// right for a parameter on `own`: all ranks of `own` are on `mesh`.
absl::Status CheckDivisor(const nn::Parameter& parameter, const DeviceMesh& own,
                          const DeviceMesh& mesh,
                          const FullyShardOptions& options) {
  if (options.reduction.divide_factor.has_value()) return absl::OkStatus();
  for (const int rank : own.layout().ranks()) {
    if (mesh.layout().Contains(rank)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "FullyShard: mesh_of gives parameter ", parameter.name(), " ",
        own.ToString(), ", whose rank ", rank, " is not on ", mesh.ToString(),
        ": the divisor of its summed gradients is unknown; set "
        "FullyShardOptions::reduction.divide_factor (for a mean, to the number "
        "of ranks that the batch is split over)"));
  }
  return absl::OkStatus();
}

absl::Status CheckFloatingPoint(const std::string& option,
                                std::optional<DType> dtype,
                                const std::string& of) {
  if (!dtype.has_value() || IsFloatingPoint(*dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "FullyShard: MixedPrecisionPolicy::", option, " is ", Name(*dtype), of,
      ", which has no gradients; set it to a floating-point dtype: f16, bf16, "
      "f32 or f64"));
}

absl::Status CheckPrecision(const nn::Parameter& parameter,
                            const MixedPrecisionPolicy& precision) {
  if (!IsFloatingPoint(parameter.data().dtype())) return absl::OkStatus();
  const std::string of = absl::StrCat(" for parameter ", parameter.name());
  CH_RETURN_IF_ERROR(
      CheckFloatingPoint("param_dtype", precision.param_dtype, of));
  if (!precision.param_dtype_override) return absl::OkStatus();
  return CheckFloatingPoint("param_dtype_override",
                            precision.param_dtype_override(parameter), of);
}

absl::Status CheckArguments(Modules modules, const DeviceMesh& mesh,
                            const FullyShardOptions& options) {
  if (modules.empty()) {
    return absl::InvalidArgumentError("FullyShard: no modules");
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    if (FsdpState::Of(*modules[i]) != nullptr) {
      const int by = FsdpState::Of(*modules[i])->mesh().world().world_rank();
      return absl::FailedPreconditionError(absl::StrCat(
          "FullyShard: this ", modules[i]->type_name(), " is ",
          FsdpState::IsReplicated(*modules[i]) ? "replicated" : "sharded",
          " already",
          by == mesh.world().world_rank()
              ? ""
              : absl::StrCat(
                    ", by rank ", by,
                    ": each rank must make its own model, inside its function"),
          modules[i]->parent() == nullptr
              ? ""
              : absl::StrCat("; its name is ", modules[i]->FullName())));
    }
    for (size_t j = 0; j < i; ++j) {
      if (modules[i] != modules[j]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("FullyShard: the ", modules[i]->type_name(), " ",
                       modules[i]->FullName(), " is in the list twice"));
    }
  }
  const MixedPrecisionPolicy& precision = options.mixed_precision;
  CH_RETURN_IF_ERROR(
      CheckFloatingPoint("reduce_dtype", precision.reduce_dtype, ""));
  CH_RETURN_IF_ERROR(
      CheckFloatingPoint("output_dtype", precision.output_dtype, ""));
  if (options.post_forward_mesh_size > 0 &&
      options.reshard_after_forward == false) {
    return absl::InvalidArgumentError(
        "FullyShard: post_forward_mesh_size needs reshard_after_forward, which "
        "is false");
  }
  if (options.gather_hooks && options.cpu_offload) {
    return absl::InvalidArgumentError(
        "FullyShard: gather_hooks convert shards on the device, and "
        "cpu_offload keeps them in host memory; unset one of the two");
  }
  return CheckOptions("FullyShard", options.prefetch, options.reduction);
}

/// State guard of the modules below a sharded module whose parameters belong to
/// the sharded module's groups. Forwards to the sharded module's state.
class PartGuard final : public nn::StateGuard {
 public:
  explicit PartGuard(std::shared_ptr<const FsdpStateRef> ref)
      : ref_(std::move(ref)) {}

  absl::Status CheckReadable(const char* what) const override {
    // A submodule may outlive the sharded module. Then its shards are complete.
    return ref_->state == nullptr ? absl::OkStatus()
                                  : ref_->state->CheckReadable(what);
  }
  absl::Status CheckWritable(const char* what) const override {
    return ref_->state == nullptr ? absl::OkStatus()
                                  : ref_->state->CheckWritable(what);
  }
  void BeginRecomputation(nn::Module& module) override {
    if (ref_->state != nullptr) ref_->state->BeginRecomputation(module);
  }

 private:
  const std::shared_ptr<const FsdpStateRef> ref_;
};

/// Attaches `state` to `modules` and guards to the modules below that are not
/// sharded themselves, and installs the hooks of `modules`.
void AttachState(absl::Span<nn::Module* const> modules,
                 const std::shared_ptr<FsdpState>& state) {
  for (nn::Module* module : modules) {
    module->Attach(FsdpState::kKey, state);
    module->Attach(nn::StateGuard::kKey, state);
  }
  const auto guard = std::make_shared<PartGuard>(state->ref());
  for (nn::Module* module : modules) {
    for (const nn::NamedModule& named : FsdpState::ModulesOf(*module)) {
      if (named.module->attachment(nn::StateGuard::kKey) == nullptr) {
        named.module->Attach(nn::StateGuard::kKey, guard);
      }
    }
  }
  FsdpTree::Hook(*state);
}

}  // namespace

absl::Status FullyShard(nn::Module& module, const DeviceMesh& mesh,
                        const FullyShardOptions& options) {
  return FullyShard({&module}, mesh, options);
}

absl::Status FullyShard(absl::Span<nn::Module* const> modules,
                        const DeviceMesh& mesh,
                        const FullyShardOptions& options) {
  return ShardModules(modules, mesh, options, /*replicated=*/false);
}

absl::Status ShardModules(absl::Span<nn::Module* const> modules,
                          const DeviceMesh& given_mesh,
                          const FullyShardOptions& options, bool replicated) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      WithRoleOrder(given_mesh, options,
                                    /*of_parameter=*/false));
  CH_RETURN_IF_ERROR(CheckArguments(modules, mesh, options));
  const Uses uses = UsesInTreesOf(modules);
  CH_ASSIGN_OR_RETURN(Sorted sorted, SortParameters(modules, uses, options));

  // Ordered by first appearance, so that all ranks make the same groups.
  std::vector<std::pair<Kind, std::vector<ParamGroup::Entry>>> kinds;
  for (nn::Parameter* parameter : sorted.to_shard) {
    DeviceMesh parameter_mesh = mesh;
    if (options.mesh_of) {
      CH_ASSIGN_OR_RETURN(
          parameter_mesh,
          WithRoleOrder(options.mesh_of(*parameter).value_or(given_mesh),
                        options, /*of_parameter=*/true));
      CH_RETURN_IF_ERROR(
          CheckDivisor(*parameter, parameter_mesh, mesh, options));
    }
    CH_RETURN_IF_ERROR(CheckPrecision(*parameter, options.mixed_precision));
    const Kind kind = {parameter->data().dtype(),
                       ParamGroup::ParamDType(*parameter, options),
                       GatherKindOf(*parameter, options),
                       parameter->requires_grad(), parameter_mesh};
    auto found = kinds.begin();
    while (found != kinds.end() && found->first != kind) ++found;
    if (found == kinds.end()) found = kinds.insert(found, {kind, {}});
    found->second.push_back({parameter, TieNote(uses.at(parameter))});
  }
  const ShardExtension& extension =
      ExtensionFor(sorted.to_shard, options, replicated);
  std::vector<std::unique_ptr<ParamGroup>> groups;
  for (const auto& [kind, entries] : kinds) {
    std::string name = CommonPrefix(sorted.to_shard);
    if (kinds.size() > 1) {
      absl::StrAppend(&name, " (", Name(kind.dtype));
      if (kind.param_dtype !=
          options.mixed_precision.param_dtype.value_or(kind.dtype)) {
        absl::StrAppend(&name, " as ", Name(kind.param_dtype));
      }
      if (kind.gathers == GatherKind::kHookedWithPost) {
        absl::StrAppend(&name, ", hooked");
      }
      absl::StrAppend(&name, kind.trained ? "" : ", frozen", ")");
      if (kind.mesh != mesh) {
        absl::StrAppend(&name, " on ", kind.mesh.ToString());
      }
    }
    CH_ASSIGN_OR_RETURN(groups.emplace_back(),
                        ParamGroup::Create(std::move(name), entries, kind.mesh,
                                           options, extension));
    if (groups.size() > 1) {
      groups.back()->set_separation_reason(
          SeparationReason(kind, kinds.front().first, groups.front()->name()));
    }
  }
  for (const auto& group : groups) {
    CH_RETURN_IF_ERROR(group->Commit(extension));
  }
  const auto state = std::make_shared<FsdpState>(
      std::vector<nn::Module*>(modules.begin(), modules.end()), mesh, options,
      std::move(groups), std::move(sorted.omitted), replicated);
  AttachState(modules, state);
  return absl::OkStatus();
}

std::string DescribePlan(nn::Module& module, PlanDetail detail) {
  std::string text;
  for (const FsdpState* state : FsdpState::Below({&module})) {
    absl::StrAppend(&text,
                    state->Describe(state == FsdpState::Of(module), detail));
  }
  return text;
}

}  // namespace crosshatch::fsdp
