// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_
#define CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_

/// \file
/// GradScaler: keeps small gradients from vanishing in float16 by a scaled
/// loss, and leaves out steps whose gradients overflow.
///
///     nn::GradScaler scaler;
///     CH_RETURN_IF_ERROR(Backward(scaler.Scale(loss)));
///     CH_RETURN_IF_ERROR(scaler.Unscale(optimizer));      // to clip, say
///     CH_ASSIGN_OR_RETURN(bool stepped, scaler.Step(optimizer));
///     scaler.Update();

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/optim/optimizer.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// The defaults are those of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536;
  /// What the scale is multiplied by after growth_interval iterations in a row
  /// without an overflow, and after one with.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// What a checkpoint keeps, as "scale" and "growth_tracker".
struct GradScalerState {
  double scale = 0;
  /// Iterations without an overflow since the scale last changed.
  int64_t growth_tracker = 0;
};

/// All ranks call the same, in the same order, and come to the same scale and
/// the same steps: whether a gradient overflowed is reduced over all ranks of
/// the root meshes in use (InitDeviceMesh), whatever their optimizers hold:
/// shards, plain or frozen parameters, or none, as on a pipeline stage. Ranks
/// step together if they share a root mesh. Stages that World::Subset alone
/// made share none: make a mesh of all ranks of the job for these, and keep it.
/// \threadsafety the rank's thread only.
class GradScaler final : public Stateful {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const { return state_.scale; }
  const GradScalerState& state() const { return state_; }
  void set_state(const GradScalerState& state) { state_ = state; }

  /// loss * scale(), with a graph.
  Tensor Scale(const Tensor& loss) const;

  /// Divides the gradients of the optimizer's parameters by the scale. Waits
  /// for the current stream.
  /// \error kFailedPrecondition if that was done since the last Update, or for
  ///     a gradient that holds partial sums; the rank's first error.
  absl::Status Unscale(const Optimizer& optimizer);

  /// Unscales if Unscale was not called, and steps unless a gradient of this
  /// optimizer is not finite.
  /// \returns whether it stepped.
  /// \error as Unscale; kFailedPrecondition for a second time since the last
  ///     Update; what the optimizer says.
  absl::StatusOr<bool> Step(Optimizer& optimizer);

  /// Ends the iteration: lowers the scale if a gradient of any optimizer
  /// overflowed, and raises it after enough iterations without.
  /// \error kFailedPrecondition if nothing was unscaled.
  absl::Status Update();

  /// \name Stateful
  /// @{
  /// \error kFailedPrecondition between Unscale or Step and Update.
  absl::StatusOr<StateDict> State() override;
  /// \error as State.
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  /// \error kInvalidArgument also for a scale that is not above 0 and finite,
  ///     and for a negative count.
  absl::Status Restore(const StateDict& state) override;
  /// @}

 private:
  struct Unscaled {
    const Optimizer* optimizer;
    bool overflowed;
    bool stepped;
  };
  Unscaled* Find(const Optimizer& optimizer);

  const GradScalerOptions options_;
  GradScalerState state_;
  std::vector<Unscaled> unscaled_;  ///< Since the last Update.
};

/// Returns whether the sum of all ranks' `sum` is finite, the same on every
/// rank: of squares in float64, which do not overflow by themselves, it is if
/// all elements are. Called by all ranks of the root meshes in use
/// (RootCommunicators), whatever a rank holds on them. Waits for the current
/// stream once; true on a dry run.
///
/// \param sum one float64, written to.
/// \param label of the all-reduces.
/// \error the rank's first error, if a collective failed.
absl::StatusOr<bool> SumIsFinite(const Tensor& sum, const std::string& label);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_
