// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PARALLELIZE_MODULE_H_
#define CROSSHATCH_TP_PARALLELIZE_MODULE_H_

/// \file
/// ParallelizeModule: applies tensor-parallel styles to a tree of modules.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

/// Patterns of modules' full names from the root (nn/name_pattern.h), for
/// example "layers.*.attention.w[qkv]", and their styles. The empty pattern is
/// the root.
using ParallelPlan = std::vector<std::pair<std::string, Style>>;

struct ParallelizeOptions {
  /// Replicate modules that no pattern matches: their parameters become
  /// Replicate DTensors, whose gradients are summed where they have to be, and
  /// plain floating-point inputs are taken to be equal on all ranks. Otherwise
  /// they keep plain parameters, and ops that combine these with DTensors fail.
  /// A norm between split projections needs no style then.
  bool replicate_rest = false;

  /// The index along the mesh of the rank whose values are used: parameters
  /// that have memory there, and are not distributed yet, are broadcast from
  /// it. The other ranks need no memory for them. Unset: nothing is sent, and
  /// values must be equal on all ranks (as Module::Materialize and loaders make
  /// them).
  std::optional<int> source_rank = {};
};

/// Applies `plan` to the modules of `root` that its patterns match, children
/// first. Call it before FullyShard, and before parameters have memory or with
/// parameters that are equal on all ranks of `mesh` (or with a source_rank).
///
/// Nothing is changed if a pattern matches no module, if a module is matched
/// twice or has a style already (Combined makes one of several), or if a style
/// does not fit its module (ParallelStyle::Check).
///
/// A DTensor is redistributed to what a style takes. A plain tensor that one
/// style returned (use_local_output) and that reaches another style unchanged
/// must be taken in its placement: otherwise a check in the first forward fails
/// and names both modules (RedistributeActivation). After an op of the program
/// nothing is known of a plain tensor.
///
/// \param mesh one axis, e.g. mesh.Slice("tp").
/// \error kInvalidArgument for a mesh of another ndim, for patterns and for a
///     style that does not fit, naming modules and patterns.
///     kFailedPrecondition for a module that has a style, and for a parameter
///     that has another layout or that FullyShard has sharded. Errors of
///     communication.
absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan,
                               const ParallelizeOptions& options = {});

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLELIZE_MODULE_H_
