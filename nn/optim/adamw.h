// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_ADAMW_H_
#define CROSSHATCH_NN_OPTIM_ADAMW_H_

/// \file
/// AdamW on local shards: the update is elementwise and needs no mesh.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/optim/optimizer.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The defaults are those of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;    ///< Finite, at least 0.
  double beta1 = 0.9;  ///< In [0, 1), as beta2.
  double beta2 = 0.999;
  double eps = 1e-8;  ///< Finite, at least 0, as weight_decay.
  double weight_decay = 0.01;

  friend bool operator==(const AdamWOptions&, const AdamWOptions&) = default;
};

/// Options for some of the parameters.
struct AdamWGroup {
  /// Returns whether a parameter belongs to the group: NameMatches("**.bias")
  /// (name_pattern.h), or a function of the program.
  std::function<bool(const Parameter&)> has = nullptr;
  /// Multiplies AdamWOptions::lr.
  double lr_scale = 1;
  /// If set, replace those of AdamWOptions.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> eps = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

/// Returns a group without weight decay for parameters of fewer than two dims
/// (norms, biases).
AdamWGroup NoDecayOfVectors();

/// AdamW's state of one parameter.
struct AdamWState {
  /// Updates so far.
  int64_t step = 0;
  /// Running means of the gradient and of its square: float32, in the layout of
  /// Parameter::data(). Undefined before the first update.
  Tensor exp_avg;
  Tensor exp_avg_sq;
};

/// The update of torch.optim.AdamW, computed in float32. On float32 parameters
/// the two agree within 5e-6 of the largest magnitude in training, but not
/// bitwise, because they round at different points. A run of adjacent
/// parameters is one kernel call. The slots are "exp_avg" and "exp_avg_sq".
///
/// \threadsafety the rank's thread only.
class AdamW final : public GroupedOptimizer<AdamWOptions, AdamWGroup> {
 public:
  /// See Optimizer::Optimizer.
  AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options,
        std::vector<AdamWGroup> groups = {},
        const RestoreOptions& restore_options = {});

  /// Returns the state of parameters()[i].
  AdamWState state(size_t i) const;
  /// Returns the state by name; nullopt if there is no parameter of that name.
  std::optional<AdamWState> FindState(const std::string& parameter_name) const;

 protected:
  AdamWOptions WithGroup(AdamWOptions options,
                         const AdamWGroup& group) const override;
  absl::Status CheckOptions(const AdamWOptions& options,
                            const std::string& whose) const override;
  void Update(const Run& run) override;
  bool can_be_captured() const override { return true; }
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_ADAMW_H_
