// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_ADAMW_H_
#define CROSSHATCH_NN_ADAMW_H_

/// \file
/// AdamW on local shards: the update is elementwise, so no mesh enters it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The defaults are those of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;    ///< Finite, at least 0.
  double beta1 = 0.9;  ///< In [0, 1), as beta2.
  double beta2 = 0.999;
  double eps = 1e-8;  ///< Finite, at least 0, as weight_decay.
  double weight_decay = 0.01;
};

/// What AdamW keeps for one parameter.
struct AdamWState {
  /// Updates so far.
  int64_t step = 0;
  /// Running means of the gradient and of its square: float32, of the layout of
  /// Parameter::data(). Undefined until there is a first update.
  Tensor exp_avg;
  Tensor exp_avg_sq;
};

/// The update of torch.optim.AdamW, computed in float32; on float32 parameters
/// the two agree within 5e-6 of the largest magnitude in training, not in bits,
/// as they round in other places. Parameters of other floating-point dtypes are
/// updated in float32, from a copy that is leased as optimizer state for the
/// length of the update, and rounded to their dtype once.
///
/// State is leased (MemoryClass::kOptimizerState) at the first step in which a
/// parameter has a gradient. Parameters that are neighbours in memory, with
/// neighbouring gradients, are updated by one kernel call.
///
/// \threadsafety the rank's thread only.
class AdamW {
 public:
  /// \param parameters named, materialized by the first Step, and alive as long
  ///     as this is. Those that need no gradient are left alone.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options);

  /// Updates every parameter that has a gradient, in the order of the current
  /// stream; does not wait for it.
  /// \error the rank's first error, if a collective failed; kInvalidArgument
  ///     naming an option (AdamWOptions) that makes no update;
  ///     kFailedPrecondition where no parameter has a gradient, or one has a
  ///     gradient that was not reduced (gradient_check.h). Then nothing is
  ///     updated.
  absl::Status Step();

  /// Drops the gradients.
  void ZeroGrad();

  const AdamWOptions& options() const { return options_; }
  /// From the next Step on.
  void set_lr(double lr) { options_.lr = lr; }

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Of parameters()[i].
  const AdamWState& state(size_t i) const { return states_[i]; }
  /// The same by name; null if there is no parameter of that name.
  const AdamWState* FindState(const std::string& parameter_name) const;

 private:
  /// State for the parameters with gradients that have none yet.
  void MakeStates();

  AdamWOptions options_;
  std::vector<Parameter*> parameters_;
  std::vector<AdamWState> states_;
  /// The local parts of the states' tensors.
  std::vector<Tensor> local_exp_avg_;
  std::vector<Tensor> local_exp_avg_sq_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_ADAMW_H_
