// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_EMA_H_
#define CROSSHATCH_NN_OPTIM_EMA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// Exponential moving averages of parameters, for evaluation:
///
///     nn::Ema ema(model.Parameters(), {.decay = 0.999});
///     ...
///     CH_RETURN_IF_ERROR(optimizer.Step());
///     CH_RETURN_IF_ERROR(ema.Update());
///     ...
///     CH_RETURN_IF_ERROR(ema.SwapIn());
///     ...  // The model computes with the averages.
///     CH_RETURN_IF_ERROR(ema.SwapOut());
///
/// Averages are float32 in the layouts of the parameters: each rank has those
/// of its own shards, and nothing is communicated. They are allocated as
/// optimizer state in the first Update, with the values that the parameters
/// have then.
///
/// The entries of its state (Stateful) are "updates", their number, and, after
/// the first, "<parameter>.average" for each parameter.
/// RestoreOptions::allow_missing accepts a state without any of these entries,
/// which changes nothing.
/// \threadsafety the rank's thread only.
class Ema final : public Stateful {
 public:
  struct Options {
    /// The weight of the old average in an Update. In [0, 1), checked.
    double decay = 0.999;
  };

  /// \param parameters each once, floating point, named, materialized before
  ///     the first Update. Ownership of modules' parameters is shared, so a
  ///     model may be destroyed first; other parameters must outlive this.
  Ema(std::vector<Parameter*> parameters, const Options& options,
      const RestoreOptions& restore_options = {});
  /// Leaves the averages in place if they are swapped in.
  ~Ema() override;
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// Updates the averages, after a step of the optimizer.
  /// \error the rank's first error; kFailedPrecondition while swapped in.
  absl::Status Update();

  /// Replaces the parameters by the averages, rounded to their dtype, for
  /// forward and checkpoints, and keeps the parameters' values. Do not call it
  /// between a forward and its backward. Until SwapOut, an optimizer's Step is
  /// an error.
  /// \error the rank's first error; kFailedPrecondition before the first Update
  ///     and while swapped in.
  absl::Status SwapIn();
  /// Restores the parameters bitwise.
  /// \error the rank's first error; kFailedPrecondition while not swapped in.
  absl::Status SwapOut();
  bool swapped_in() const { return swapped_in_; }

  /// Returns the average of parameters()[i], in its layout; without values
  /// before the first Update.
  const Tensor& average(size_t i) const;
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  /// \name Stateful
  /// @{
  /// \error kFailedPrecondition also while swapped in.
  absl::StatusOr<StateDict> State() override;
  absl::StatusOr<StateDict> StateToFill(
      const std::vector<std::string>& saved) override;
  absl::Status Restore(const StateDict& state) override;
  /// @}

 private:
  absl::Status CheckNotSwapped(const char* what) const;
  void SetSwapped(bool swapped);
  /// Allocates the averages, with undefined content.
  void MakeAverages();
  absl::Status AddAverages(StateDict& state) const;
  /// Returns this rank's shard, to be written.
  Tensor LocalOf(size_t i) const;

  const std::vector<Parameter*> parameters_;
  const std::vector<std::shared_ptr<Parameter>> owners_;
  const Options options_;
  const RestoreOptions restore_options_;
  int64_t updates_ = 0;
  /// In the parameters' layouts; without values before the first update.
  std::vector<Tensor> averages_;
  std::vector<Tensor> aside_;  ///< Local; empty while not swapped in.
  bool swapped_in_ = false;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_EMA_H_
