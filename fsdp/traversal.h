// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_FSDP_TRAVERSAL_H_
#define CROSSHATCH_FSDP_TRAVERSAL_H_

/// \file
/// Ways through a tree of modules, each in one order that all ranks share.
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
/// In which of them FullyShard was called does not show: plans, gathers and
/// GetShardedModules follow kModules.
///
/// A module under Replicate is left to itself: unless it is where a way begins,
/// no order gives it, and none enters what is below it. Nothing wraps modules
/// here, so the names of parameters have no prefixes to clean off: a
/// checkpointed or sharded module keeps the names it had.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"

namespace crosshatch::fsdp {

enum class TraversalOrder : uint8_t { kModules, kComposing, kWrapping };

/// `root` and all below it that is not below Replicate, each once.
std::vector<nn::NamedModule> GetModules(nn::Module& root, TraversalOrder order);

/// Those of them that FullyShard was called on, in the order kModules: what one
/// tree gathers and reduces when `root` runs.
std::vector<nn::NamedModule> GetShardedModules(nn::Module& root);

/// FullyShard on each module below `root` that `wants`, bottom-up, and then on
/// `root`.
/// \error what FullyShard says; modules that it came to before stay sharded.
absl::Status FullyShardEach(nn::Module& root, const DeviceMesh& mesh,
                            const FullyShardOptions& options,
                            absl::FunctionRef<bool(const nn::Module&)> wants);

/// Calls `visit` for `root` and all below it, parents first. `prefix` is what
/// the names of the module's own parameters start with: "", "layers.0.mlp.". A
/// module that is registered twice is visited under each of its names.
void ApplyToModules(
    nn::Module& root,
    absl::FunctionRef<void(nn::Module& module, const std::string& prefix)>
        visit);

/// A parameter and its names from `root`, in the order of ApplyToModules.
struct ParameterNames {
  nn::Parameter* parameter;
  std::vector<std::string> names;
};

/// Each parameter once.
/// \param all_names every name of a tied parameter, not just the first.
std::vector<ParameterNames> GetParameterNames(nn::Module& root, bool all_names);

}  // namespace crosshatch::fsdp

#endif  // CROSSHATCH_FSDP_TRAVERSAL_H_
