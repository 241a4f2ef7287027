// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_
#define CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_

/// \file
/// GradScaler: scales the loss so that small gradients do not underflow in
/// float16, and skips steps whose gradients overflow.
///
///     nn::GradScaler scaler;
///     CH_RETURN_IF_ERROR(Backward(scaler.Scale(loss)));
///     CH_RETURN_IF_ERROR(scaler.Unscale(optimizer));      // e.g. to clip
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
  /// The scale is multiplied by growth_factor after growth_interval consecutive
  /// iterations without an overflow, and by backoff_factor after one with.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// The state in a checkpoint, as "scale" and "growth_tracker".
struct GradScalerState {
  double scale = 0;
  /// Iterations without an overflow since the scale last changed.
  int64_t growth_tracker = 0;
};

/// All ranks make the same calls in the same order, and have the same scale and
/// steps: whether a gradient overflowed is reduced over all ranks of the root
/// meshes in use (InitDeviceMesh), whatever their optimizers hold: shards,
/// plain or frozen parameters, or none, as on a pipeline stage. Ranks step
/// together if they share a root mesh. Stages made by World::Subset only share
/// none: create a mesh of all ranks of the job for these, and keep it.
/// \threadsafety the rank's thread only.
class GradScaler final : public Stateful {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const { return state_.scale; }
  const GradScalerState& state() const { return state_; }
  void set_state(const GradScalerState& state) { state_ = state; }

  /// Returns loss * scale(), in the graph.
  Tensor Scale(const Tensor& loss) const;

  /// Divides the gradients of the optimizer's parameters by the scale. Waits
  /// for the current stream.
  /// \error kFailedPrecondition if called before since the last Update, or for
  ///     a gradient that holds partial sums or is not reduced; the rank's first
  ///     error.
  absl::Status Unscale(const Optimizer& optimizer);

  /// Unscales if Unscale was not called, and steps unless a gradient of this
  /// optimizer is not finite.
  /// \returns whether it stepped.
  /// \error as Unscale; kFailedPrecondition for a second call since the last
  ///     Update; errors of the optimizer.
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

/// Returns, the same on every rank, whether the sum of all ranks' `sum` is
/// finite. A sum of squares in float64 is finite if all float32 elements are.
/// All ranks of the root meshes in use (RootCommunicators) call it. Waits for
/// the current stream once; true in a dry run.
///
/// \param sum one float64, written to.
/// \param label of the all-reduces.
/// \error the rank's first error, if a collective failed.
absl::StatusOr<bool> SumIsFinite(const Tensor& sum, const std::string& label);

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_GRAD_SCALER_H_
