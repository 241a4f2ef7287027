// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TRAVERSAL_H_
#define CROSSHATCH_FSDP_TRAVERSAL_H_

/// \file
/// Orders in which to visit a tree of modules, the same on all ranks.
///
/// For
///
///     mod
///       submod1
///       submod2
///         subsubmod
///
/// kModules    mod, submod1, submod2, subsubmod
/// kComposing  subsubmod, submod2, submod1, mod: the reverse. Each module comes
///             after all below it, so FullyShard may be called in this order.
/// kWrapping   submod1, subsubmod, submod2, mod: the order in which a recursive
///             function that handles children first finishes them. FullyShard
///             may be called in this order too.
///
/// The order in which FullyShard was called has no effect on plans, gathers and
/// GetShardedModules, which use kModules.
///
/// Traversals skip modules under Replicate and all modules below them, unless
/// they start at one. No wrapper modules exist: a checkpointed or sharded
/// module keeps its parameters' names.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

/// Orders of modules; see above.
enum class TraversalOrder : uint8_t { kModules, kComposing, kWrapping };

/// Returns `root` and all modules below it that are not under Replicate, each
/// once.
std::vector<nn::NamedModule> GetModules(nn::Module& root, TraversalOrder order);

/// Returns the modules of GetModules(root, kModules) that FullyShard was called
/// on. One tree gathers and reduces them when `root` runs.
std::vector<nn::NamedModule> GetShardedModules(nn::Module& root);

/// Calls FullyShard on each module below `root` that `wants` selects,
/// bottom-up, and then on `root`.
/// \error The first error of FullyShard. Modules before it stay sharded.
absl::Status FullyShardEach(nn::Module& root, const DeviceMesh& mesh,
                            const FullyShardOptions& options,
                            absl::FunctionRef<bool(const nn::Module&)> wants);

/// Calls `visit` for `root` and all modules below it, parents first. A module
/// that is registered twice is visited under each of its names.
/// \param prefix the prefix of the names of the module's own parameters: "" or
///     e.g. "layers.0.mlp.".
void ApplyToModules(
    nn::Module& root,
    absl::FunctionRef<void(nn::Module& module, const std::string& prefix)>
        visit);

/// A parameter and its names from `root`, in the order of ApplyToModules.
struct ParameterNames {
  nn::Parameter* parameter;
  std::vector<std::string> names;
};

/// Returns each parameter once.
/// \param all_names whether to return every name of a tied parameter, not just
///     the first.
std::vector<ParameterNames> GetParameterNames(nn::Module& root, bool all_names);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_TRAVERSAL_H_
