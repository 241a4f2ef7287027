// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODULE_STATE_H_
#define CROSSHATCH_NN_MODULE_STATE_H_

/// \file
/// The parameters and persistent buffers of a module as a state.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/nn/state_dict.h"

namespace crosshatch::nn {

/// The parameters of `module`, each once by its first name, and after them its
/// persistent buffers: what is kept of it.
std::vector<NamedParameter> NamedState(Module& module);

/// Each parameter and each persistent buffer by its name from the module
/// ("layers.0.mlp.up_proj.weight"): what lives from step to step
/// (Parameter::data), so shards, DTensors on the mesh that they lie on,
/// whatever wraps, gathers or recomputes the module. A tied parameter is there
/// once, by its first name. Gradients are no part.
class ModuleState final : public Stateful {
 public:
  /// \param module is to outlive this: without it each call is an error.
  explicit ModuleState(Module& module, const RestoreOptions& options = {})
      : module_(module), life_(module.life()), options_(options) {}

  /// \error kFailedPrecondition if the module was destroyed, naming it, and
  /// naming a parameter that has no memory yet or
  ///     holds partial sums, or a module whose parameters are summoned or whose
  ///     gradients are still to be reduced (StateGuard).
  absl::StatusOr<StateDict> State() override;

  /// Gives memory to parameters that have none (LeaseParameters): a model that
  /// is restored need not be materialized before. Until they are filled, those
  /// of floating-point types hold NaN, also for Materialize, which leaves what
  /// has memory alone: load again after a load that failed. Buffers that are no
  /// part of it get memory too, and their first values, by seed 0. \error also
  /// kFailedPrecondition for parameters that are gathered, and for
  ///     one that is missing and has no memory.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;

  absl::Status Restore(const StateDict& state) override;

 private:
  absl::Status CheckAlive() const;

  Module& module_;
  const std::shared_ptr<const ModuleLife> life_;
  const RestoreOptions options_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODULE_STATE_H_
