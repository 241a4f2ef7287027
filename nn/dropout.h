// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_DROPOUT_H_
#define CROSSHATCH_NN_DROPOUT_H_

#include <cstdint>
#include <optional>

#include "crosshatch/nn/module.h"

namespace crosshatch::nn {

/// While training: zeroes each element with probability p and scales the others
/// by 1 / (1 - p). Else its input.
///
/// What is dropped follows from a seed, the module's full name, a step and the
/// element's index in the global tensor, and from nothing else: it is the same
/// on every mesh and after a resume. So somebody has to say which step it is:
/// SetDropoutStep, once for each forward of the model. Calls of one step drop
/// the same; a forward that is computed again for its backward (checkpoint.h)
/// drops what it dropped, whatever step was said, and whether it trains was
/// changed, since.
class Dropout final : public Module {
 public:
  /// \param p in [0, 1], checked
  explicit Dropout(double p);

  const char* type_name() const override { return "Dropout"; }

  double p() const { return p_; }
  /// True at first.
  bool training() const { return training_; }
  void set_training(bool training) { training_ = training; }
  /// For the calls from now on; the module's name is that of now.
  void SetStep(uint64_t seed, uint64_t step);

 protected:
  /// Checks, while training, that there is a step.
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  struct Draw {
    uint64_t key;
    uint64_t step;
  };

  const double p_;
  bool training_ = true;
  std::optional<Draw> draw_;
};

/// \name Of all Dropout modules in the tree of `root`
/// @{
void SetDropoutTraining(Module& root, bool training);
/// \param step a number for each forward: of a training step, or of a
///     micro-batch where gradients of several accumulate
void SetDropoutStep(Module& root, uint64_t seed, uint64_t step);
/// @}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_DROPOUT_H_
