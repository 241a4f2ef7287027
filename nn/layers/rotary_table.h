// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_ROTARY_TABLE_H_
#define CROSSHATCH_NN_LAYERS_ROTARY_TABLE_H_

/// \file
/// The angles of rotary position embedding.

#include <cstdint>

#include "crosshatch/nn/layers/rope_scaling.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// cos and sin of position * f[i], i < head_dim / 2, with the frequencies of
/// rope_scaling.h, times its attention_factor. Frequency and angle are rounded
/// to float32 as Hugging Face's are, so that models trained there compute the
/// same here.
class RotaryTable {
 public:
  /// \pre head_dim is even; scaling.Validate(head_dim, theta) is OK
  RotaryTable(int64_t head_dim, double theta, RopeScaling scaling = {});

  /// \name Tables for positions 0 .. length-1
  /// [length, head_dim / 2] f32, on the rank's device; kept until another
  /// length is requested.
  /// @{
  const Tensor& Cos(int64_t length);
  const Tensor& Sin(int64_t length);
  /// @}

 private:
  void Prepare(int64_t length);

  const int64_t head_dim_;
  const double theta_;
  const RopeScaling scaling_;
  Tensor cos_;
  Tensor sin_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_ROTARY_TABLE_H_
