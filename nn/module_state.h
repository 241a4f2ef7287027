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

/// Returns the parameters of `module`, each once by its first name, and after
/// them its persistent buffers.
std::vector<NamedParameter> NamedState(Module& module);

/// The state of a module: Parameter::data() of each parameter and persistent
/// buffer by its name from the module ("layers.0.mlp.up_proj.weight"), so plain
/// tensors or DTensors, whatever wraps, gathers or recomputes the module. A
/// tied parameter has one entry, by its first name. Gradients are not included.
class ModuleState final : public Stateful {
 public:
  /// \param module outlives this; otherwise each call is an error.
  explicit ModuleState(Module& module, const RestoreOptions& options = {})
      : module_(module), life_(module.life()), options_(options) {}

  /// \error kFailedPrecondition naming the module if it was destroyed, a
  ///     parameter that has no memory yet or holds partial sums, or a module
  ///     whose parameters are summoned or whose gradients are not reduced yet
  ///     (StateGuard).
  absl::StatusOr<StateDict> State() override;

  /// Allocates parameters without memory (LeaseParameters), so a model need not
  /// be materialized before it is restored. Until they are filled,
  /// floating-point ones are NaN, and Materialize keeps that: load again after
  /// a failed load. Non-persistent buffers get memory and their first values,
  /// with seed 0.
  /// \error also kFailedPrecondition for parameters that are gathered, and for
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
