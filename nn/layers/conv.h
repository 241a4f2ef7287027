// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_CONV_H_
#define CROSSHATCH_NN_LAYERS_CONV_H_

/// \file
/// Convolutions: the stems of models of images and sound, patch embeddings.

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"
#include "crosshatch/tensor/ops/conv.h"

namespace crosshatch::nn {

/// x [N, C, H, W] to [N, O, H', W'] (Conv2d of tensor/ops/conv.h). The weight
/// is filled by init::KaimingUniform(sqrt(5)), the bias with zeros. Where x and
/// the weight are of different dtypes it computes in the weight's and gives
/// x's.
///
/// Of patches that do not overlap, kernel equal to stride, it is a patch
/// embedding: Transpose(Flatten(y, 2), 1, 2) is [N, H' W', O] and no copy.
class Conv2d final : public Module {
 public:
  /// \pre both numbers of channels are multiples of options.groups, checked.
  Conv2d(int64_t in_channels, int64_t out_channels, const RowsCols& kernel,
         const Conv2dOptions& options = {}, bool bias = true);

  const char* type_name() const override { return "Conv2d"; }

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

  const char* type_name() const override { return "Conv1d"; }

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
