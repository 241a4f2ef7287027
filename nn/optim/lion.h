// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_LION_H_
#define CROSSHATCH_NN_OPTIM_LION_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/optim/optimizer.h"

namespace crosshatch::nn {

/// The defaults are those of the paper (Chen et al., 2023).
struct LionOptions {
  double lr = 1e-4;    ///< Finite, at least 0: a tenth of AdamW's, or a third.
  double beta1 = 0.9;  ///< In [0, 1), as beta2.
  double beta2 = 0.99;
  /// Finite, at least 0; decoupled, as AdamW's.
  double weight_decay = 0;

  friend bool operator==(const LionOptions&, const LionOptions&) = default;
};

/// Options for some of the parameters (AdamWGroup).
struct LionGroup {
  std::function<bool(const Parameter&)> has = nullptr;
  double lr_scale = 1;
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

/// Steps by the sign of a mean of gradients, with half of AdamW's state: for
/// gradient g and mean m,
///   p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g)
///   m = beta2 m + (1 - beta2) g
/// The slot is "exp_avg".
///
/// \threadsafety the rank's thread only.
class Lion final : public GroupedOptimizer<LionOptions, LionGroup> {
 public:
  /// See Optimizer::Optimizer.
  Lion(std::vector<Parameter*> parameters, const LionOptions& options,
       std::vector<LionGroup> groups = {},
       const RestoreOptions& restore_options = {});

 protected:
  LionOptions WithGroup(LionOptions options,
                        const LionGroup& group) const override;
  absl::Status CheckOptions(const LionOptions& options,
                            const std::string& whose) const override;
  void Update(const Run& run) override;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_LION_H_
