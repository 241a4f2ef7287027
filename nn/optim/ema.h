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

/// Exponential moving averages of parameters, to evaluate by:
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
/// Averages are float32 and lie as the parameters do, each rank holding those
/// of its own shards, so nothing is communicated. They are leased as optimizer
/// state at the first Update, with the values that the parameters have then.
///
/// As a state (Stateful) it is "updates", how many there were, and, after the
/// first, "<parameter>.average" for each parameter. It is missing as a whole
/// or not at all: RestoreOptions::allow_missing takes a state without any entry
/// of it, and it stays as it is.
/// \threadsafety the rank's thread only.
class Ema final : public Stateful {
 public:
  struct Options {
    /// An Update keeps so much of the average, and takes the rest of the
    /// parameter. In [0, 1), checked.
    double decay = 0.999;
  };

  /// \param parameters each once, of floating point, named, materialized by the
  ///     first Update. This shares the ownership of modules' parameters, so
  ///     that a model may go before; others are alive as long as this is.
  Ema(std::vector<Parameter*> parameters, const Options& options,
      const RestoreOptions& restore_options = {});
  /// Where the averages are swapped in, they stay.
  ~Ema() override;
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// After a step of the optimizer.
  /// \error the rank's first error; kFailedPrecondition while swapped in.
  absl::Status Update();

  /// Puts the averages where the parameters are, rounded to their dtype, and
  /// keeps those aside; forward and checkpoints of the model then have the
  /// averages. Not between a forward and its backward. Until SwapOut an
  /// optimizer's Step of such a parameter is an error.
  /// \error the rank's first error; kFailedPrecondition before the first Update
  ///     and while swapped in.
  absl::Status SwapIn();
  /// Puts the parameters back, with the bits that they had.
  /// \error the rank's first error; kFailedPrecondition while not swapped in.
  absl::Status SwapOut();
  bool swapped_in() const { return swapped_in_; }

  /// Of parameters()[i], as it lies; without a value before the first Update.
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
  /// Memory for the averages, of undefined content.
  void MakeAverages();
  absl::Status AddAverages(StateDict& state) const;
  /// Its part of this rank, to be written.
  Tensor LocalOf(size_t i) const;

  const std::vector<Parameter*> parameters_;
  const std::vector<std::shared_ptr<Parameter>> owners_;
  const Options options_;
  const RestoreOptions restore_options_;
  int64_t updates_ = 0;
  /// Like the parameters; before the first update what memory there is holds
  /// none.
  std::vector<Tensor> averages_;
  std::vector<Tensor> aside_;  ///< Local; empty while not swapped in.
  bool swapped_in_ = false;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_EMA_H_
