// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_NORM_H_
#define CROSSHATCH_NN_LAYERS_NORM_H_

#include <cstdint>
#include <memory>

#include "crosshatch/nn/module.h"
#include "crosshatch/nn/parameter.h"

namespace crosshatch::nn {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim, of size `dim`. If x
/// and the weight have different dtypes (a float32 norm in a bfloat16 model),
/// it computes in the wider one and returns x's.
class RmsNorm final : public Module {
 public:
  RmsNorm(int64_t dim, double eps);

  /// [dim], ones at first.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  double eps() const { return eps_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  std::shared_ptr<Parameter> weight_;
  double eps_;
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool weight = true;
  bool bias = true;
};

/// (x - mean) / sqrt(variance + eps) * weight + bias over the last dim, of size
/// `dim`. If x and the weight have different dtypes, it computes in the wider
/// one and returns x's.
class LayerNorm final : public Module {
 public:
  explicit LayerNorm(int64_t dim, const LayerNormOptions& options = {});

  /// [dim], ones at first; null if there is none.
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  /// [dim], zeros at first; null if there is none.
  const std::shared_ptr<Parameter>& bias() const { return bias_; }
  double eps() const { return eps_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const int64_t dim_;
  const double eps_;
  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

struct GroupNormOptions {
  double eps = 1e-5;
  /// Whether there are a weight and a bias.
  bool affine = true;
};

/// Normalizes x [N, C, ...] over the channels of a group and all dims after
/// them, then applies a weight and a bias for each channel. DTensors keep a
/// split batch, and channels that are split between groups; other splits are
/// errors. If x and the weight have different dtypes, it computes in the wider
/// one and returns x's.
class GroupNorm final : public Module {
 public:
  /// \checks that `channels` is a multiple of `groups`
  GroupNorm(int64_t groups, int64_t channels,
            const GroupNormOptions& options = {});

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

#endif  // CROSSHATCH_NN_LAYERS_NORM_H_
