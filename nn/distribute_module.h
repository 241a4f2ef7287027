// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_DISTRIBUTE_MODULE_H_
#define CROSSHATCH_NN_DISTRIBUTE_MODULE_H_

/// \file
/// Makes the parameters of a module distributed tensors, by a function of the
/// user's. tp::ParallelizeModule does it by ready-made styles.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct DistributeModuleOptions {
  /// Called for the module and each below, in the order of NamedModules, with
  /// its name there. Gives those of its own parameters a layout that are to
  /// have one other than Replicate, by DistributeParameter.
  std::function<absl::Status(const std::string& name, Module& module,
                             const DeviceMesh& mesh)>
      partition = nullptr;
  /// Runs before each forward of the module: makes plain inputs distributed.
  std::function<void(TensorList& inputs, const DeviceMesh& mesh)> input =
      nullptr;
  /// Runs after each forward: makes distributed outputs plain, or lays them
  /// otherwise.
  std::function<void(TensorList& outputs, const DeviceMesh& mesh)> output =
      nullptr;
};

/// Spreads the parameters of `module` and all below over `mesh`: as
/// options.partition says, and the rest and all buffers replicated. The values
/// must be equal on all ranks, or not be there yet (Module::Materialize fills
/// them); nothing is communicated. Called by every rank of the mesh.
/// \error kInvalidArgument on a rank that is not on the mesh; what the
///     partition says; kFailedPrecondition for a module that was distributed by
///     this function before, and for a parameter that lies on another mesh.
absl::Status DistributeModule(Module& module, const DeviceMesh& mesh,
                              const DistributeModuleOptions& options = {});

/// Gives a plain parameter a layout on `mesh`. A tied parameter may be given
/// one layout several times.
/// \error kFailedPrecondition for a parameter that has another layout already.
absl::Status DistributeParameter(Parameter& parameter, const DeviceMesh& mesh,
                                 const Layout& layout);

/// OK if all ranks of `mesh`, which all call it, have memory for the same
/// buffers of `module` and below, and hold the same bits in them. Waits for the
/// current stream and for the ranks; in a dry run OK. FullyShard does it at the
/// first forward, and with CROSSHATCH_DEBUG=replicas at each.
/// \error kFailedPrecondition naming the first buffer and two ranks that
///     differ; what the engine says.
absl::Status CheckBuffers(Module& module, const DeviceMesh& mesh);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_DISTRIBUTE_MODULE_H_
