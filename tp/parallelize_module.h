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

/// Which modules get which style. A pattern is of modules' full names from the
/// root (nn/name_pattern.h): "layers.*.attention.w[qkv]". The empty pattern is
/// the root.
using ParallelPlan = std::vector<std::pair<std::string, Style>>;

struct ParallelizeOptions {
  /// Modules that no pattern matches keep plain parameters, which meet no
  /// DTensor. With this they are replicated over the mesh: their parameters
  /// become Replicate DTensors, gradients being summed where they have to be,
  /// and plain floating-point inputs are taken to be equal on all ranks; what
  /// comes distributed is computed as it comes. A norm between split
  /// projections needs no style then.
  bool replicate_rest = false;

  /// The index along the mesh of the rank whose values count: parameters below
  /// the root that have memory there and are not spread yet are sent from it to
  /// the others, which need have none, before they are spread. Unset: nothing
  /// is sent, and values must be equal on all ranks (as Module::Materialize and
  /// loaders make them).
  std::optional<int> source_rank = {};

  /// Pairs of patterns of modules: the first output of the one is the first
  /// input of the other. Where both match as many modules these go in pairs, in
  /// the order of the tree; else one of them matches one.
  std::vector<std::pair<std::string, std::string>> flows = {};
};

/// Applies `plan` to the modules of `root` that its patterns match, those below
/// first. Call it before FullyShard and before parameters have memory, or on
/// parameters that are equal on all ranks of `mesh` (or with a source_rank).
///
/// Before anything is changed it is checked that
/// - each pattern, of the plan and of flows, matches a module;
/// - no module is matched twice, or has a style already (Combined makes one of
///   several);
/// - each style fits its module (ParallelStyle::Check);
/// - in each flow, of options.flows and of those that modules tell themselves
///   (nn::TellsFlows: Sequential, Llama), where one module hands out a plain
///   tensor (use_local_output), the next does not take it as lying otherwise.
///   Dims are compared as written: one from the start and one from the end are
///   not told apart before a forward shows how many there are. Of the modules
///   around either the outermost one with a style counts, which sees an input
///   first and an output last;
/// - in each flow of options.flows, where one module hands out a DTensor, the
///   next has a style or no plain parameters of its own, unless a style above
///   spreads what is left below it or the rest is replicated.
/// What comes as a DTensor a style redistributes, so nothing else of layouts
/// can go wrong before a forward.
///
/// In each forward it is checked that a plain tensor which one style has handed
/// out, and which reaches another one on `mesh` as it is, is taken as it lies;
/// one that is not fails a check, which names both modules. What an op or a
/// write makes of it is the program's own.
///
/// \param mesh one axis, e.g. mesh.Slice("tp").
/// \error kInvalidArgument for a mesh of another ndim, for the checks above and
///     for a style that does not fit; modules and patterns are named.
///     kFailedPrecondition for a module that has a style, and for a parameter
///     that is spread otherwise, or sharded by FullyShard; what the engine says
///     of sending.
absl::Status ParallelizeModule(nn::Module& root, const DeviceMesh& mesh,
                               const ParallelPlan& plan,
                               const ParallelizeOptions& options = {});

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PARALLELIZE_MODULE_H_
