// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_SGD_H_
#define CROSSHATCH_NN_OPTIM_SGD_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/optim/optimizer.h"

namespace crosshatch::nn {

/// The defaults are those of torch.optim.SGD.
struct SgdOptions {
  double lr = 1e-3;  ///< Finite, at least 0.
  /// In [0, 1), as dampening. If not 0, the step uses a running sum of
  /// gradients, each but the first scaled by 1 - dampening.
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< Finite, at least 0; added to the gradient.
  /// Nesterov's: with momentum and without dampening.
  bool nesterov = false;

  friend bool operator==(const SgdOptions&, const SgdOptions&) = default;
};

/// Options for some of the parameters (AdamWGroup).
struct SgdGroup {
  std::function<bool(const Parameter&)> has = nullptr;
  double lr_scale = 1;
  std::optional<double> momentum = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
};

/// The update of torch.optim.SGD. The slot is "momentum_buffer"; there is none
/// if neither the options nor a group have momentum.
///
/// \threadsafety the rank's thread only.
class Sgd final : public GroupedOptimizer<SgdOptions, SgdGroup> {
 public:
  /// See Optimizer::Optimizer.
  Sgd(std::vector<Parameter*> parameters, const SgdOptions& options,
      std::vector<SgdGroup> groups = {},
      const RestoreOptions& restore_options = {});

 protected:
  SgdOptions WithGroup(SgdOptions options,
                       const SgdGroup& group) const override;
  absl::Status CheckOptions(const SgdOptions& options,
                            const std::string& whose) const override;
  void Update(const Run& run) override;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_SGD_H_
