// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/conv.h"

#include <cmath>
#include <memory>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/cast.h"

namespace crosshatch::nn {
namespace {

// Returns the sizes of the weight.
Shape WeightSizes(int64_t in_channels, int64_t out_channels, ShapeView kernel,
                  int64_t groups) {
  CH_CHECK(groups > 0 && in_channels % groups == 0 &&
           out_channels % groups == 0)
      << "a convolution of " << in_channels << " to " << out_channels
      << " channels in " << groups << " groups";
  Shape sizes = {out_channels, in_channels / groups};
  sizes.insert(sizes.end(), kernel.begin(), kernel.end());
  return sizes;
}

template <typename Options>
TensorList Forward(Tensor (*conv)(const Tensor&, const Tensor&, const Tensor&,
                                  const Options&),
                   TensorSpan inputs, const Parameter& weight,
                   const Parameter* bias, const Options& options) {
  CH_CHECK_EQ(inputs.size(), 1u) << "conv";
  const Tensor& x = inputs[0];
  CH_CHECK(IsFloatingPoint(x.dtype())) << "conv of " << x.Describe();
  const DType dtype = weight.Get().dtype();
  const Tensor b = bias == nullptr ? Tensor() : ToDType(bias->Get(), dtype);
  return {
      ToDType(conv(ToDType(x, dtype), weight.Get(), b, options), x.dtype())};
}

}  // namespace

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels,
               const RowsCols& kernel, const Conv2dOptions& options, bool bias)
    : options_(options),
      weight_(AddParameter(
          "weight",
          WeightSizes(in_channels, out_channels, kernel, options.groups),
          init::KaimingUniform(std::sqrt(5.0)))) {
  if (bias) bias_ = AddParameter("bias", {out_channels}, {});
}

TensorList Conv2d::ForwardImpl(TensorSpan inputs) {
  return nn::Forward(&crosshatch::Conv2d, inputs, *weight_, bias_.get(),
                     options_);
}

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel,
               const Conv1dOptions& options, bool bias)
    : options_(options),
      weight_(AddParameter(
          "weight",
          WeightSizes(in_channels, out_channels, {kernel}, options.groups),
          init::KaimingUniform(std::sqrt(5.0)))) {
  if (bias) bias_ = AddParameter("bias", {out_channels}, {});
}

TensorList Conv1d::ForwardImpl(TensorSpan inputs) {
  return nn::Forward(&crosshatch::Conv1d, inputs, *weight_, bias_.get(),
                     options_);
}

}  // namespace crosshatch::nn
