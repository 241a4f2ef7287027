// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_CONV_H_
#define CROSSHATCH_NN_LAYERS_CONV_H_

/// \file
/// Convolutions, for models of images and sound and for patch embeddings.

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/ops/conv.h"

namespace crosshatch::nn {

/// x [N, C, H, W] to [N, O, H', W'] (Conv2d of tensor/ops/conv.h). The weight
/// is initialized by init::KaimingUniform(sqrt(5)), the bias with zeros. If x
/// and the weight have different dtypes, it computes in the weight's and
/// returns x's.
///
/// With a kernel equal to the stride it is a patch embedding:
/// Transpose(Flatten(y, 2), 1, 2) is [N, H' W', O], without a copy.
class Conv2d final : public Module {
 public:
  /// \checks that both numbers of channels are multiples of options.groups
  Conv2d(int64_t in_channels, int64_t out_channels, const RowsCols& kernel,
         const Conv2dOptions& options = {}, bool bias = true);

  /// [O, C / groups, kernel[0], kernel[1]]
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [O]; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const Conv2dOptions options_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

/// x [N, C, L] to [N, O, L'], as Conv2d.
class Conv1d final : public Module {
 public:
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel,
         const Conv1dOptions& options = {}, bool bias = true);

  /// [O, C / groups, kernel]
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [O]; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const Conv1dOptions options_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_CONV_H_
