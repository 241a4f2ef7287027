// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PARALLELIZE_MODULE_H_
#define CROSSHATCH_TP_PARALLELIZE_MODULE_H_

/// \file
/// ParallelizeModule: applies tensor-parallel styles to a tree of modules.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

/// Which modules get which style. A pattern is of modules' full names from the
/// root (nn/name_pattern.h): "layers.*.attention.w[qkv]". The empty pattern is
/// the root.
using ParallelPlan = std::vector<std::pair<std::string, Style>>;

/// Applies `plan` in order to the modules of `root` that its patterns match. A
/// module may match several patterns; its parameters can be spread by one only.
/// Call it before FullyShard and before parameters have memory, or on
/// parameters that are equal on all ranks of `mesh`.
/// \param mesh one axis, e.g. mesh.Slice("tp").
/// \error kInvalidArgument for a mesh of another ndim, a pattern that matches
///     nothing (a misspelt one would leave a module unsplit) or a style that
///     does not fit; the module and pattern are named. kFailedPrecondition for
///     a parameter that is spread otherwise, or sharded by FullyShard.
absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLELIZE_MODULE_H_
