// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_GROUP_NORM_H_
#define CROSSHATCH_NN_LAYERS_GROUP_NORM_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

struct GroupNormOptions {
  double eps = 1e-5;
  /// Whether there are a weight and a bias.
  bool affine = true;
};

/// x [N, C, ...]: mean and variance over the channels of a group and all dims
/// that follow, then a weight and a bias of each channel. Distributed tensors
/// keep a batch that is split, and channels that are split by whole groups;
/// other splits are refused by name. Where x and the weight are of different
/// dtypes it computes in the wider one and gives x's.
class GroupNorm final : public Module {
 public:
  /// \pre `channels` is a multiple of `groups`, checked.
  GroupNorm(int64_t groups, int64_t channels,
            const GroupNormOptions& options = {});

  const char* type_name() const override { return "GroupNorm"; }

  /// [C], ones at first; null if not affine.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [C], zeros at first; null if not affine.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const int64_t groups_;
  const int64_t channels_;
  const double eps_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_GROUP_NORM_H_
