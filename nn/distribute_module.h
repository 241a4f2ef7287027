// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_DISTRIBUTE_MODULE_H_
#define CROSSHATCH_NN_DISTRIBUTE_MODULE_H_

/// \file
/// Distributes a module's parameters by a function of the program.
/// tp::ParallelizeModule does it by styles.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct DistributeModuleOptions {
  /// Called for the module and each below, in the order and with the names of
  /// NamedModules. Calls DistributeParameter for those of the module's own
  /// parameters that get another layout than Replicate.
  std::function<absl::Status(const std::string& name, Module& module,
                             const DeviceMesh& mesh)>
      partition = nullptr;
  /// Called before each forward of the module: distributes plain inputs.
  std::function<void(TensorList& inputs, const DeviceMesh& mesh)> input =
      nullptr;
  /// Called after each forward: makes outputs plain, or redistributes them.
  std::function<void(TensorList& outputs, const DeviceMesh& mesh)> output =
      nullptr;
};

/// Distributes the parameters of `module` and all below over `mesh` by
/// options.partition, and replicates the rest and all buffers. Values must be
/// equal on all ranks, or have no memory yet (Module::Materialize); nothing is
/// communicated. Every rank of the mesh calls it.
/// \error kInvalidArgument on a rank that is not on the mesh; errors of the
///     partition; kFailedPrecondition for a module that this function has
///     distributed before, and for a parameter on another mesh.
absl::Status DistributeModule(Module& module, const DeviceMesh& mesh,
                              const DistributeModuleOptions& options = {});

/// Gives a plain parameter a layout on `mesh`. A tied parameter may be given
/// the same layout more than once.
/// \error kFailedPrecondition for a parameter that has another layout already.
absl::Status DistributeParameter(Parameter& parameter, const DeviceMesh& mesh,
                                 const Layout& layout);

/// Returns OK if all ranks of `mesh`, which all call it, have memory for the
/// same buffers of `module` and below with the same bits; always in a dry run.
/// Waits for the current stream and for the ranks. FullyShard calls it in the
/// first forward, and with CROSSHATCH_DEBUG=replicas in each.
/// \error kFailedPrecondition naming the first buffer and two ranks that
///     differ; errors of communication.
absl::Status CheckBuffers(Module& module, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_DISTRIBUTE_MODULE_H_
