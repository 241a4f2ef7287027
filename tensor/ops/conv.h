// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CONV_H_
#define CROSSHATCH_TENSOR_OPS_CONV_H_

/// \file
/// Convolutions as matrix products: the windows of the input (windows.h) times
/// the weight. A split batch stays split. Split output channels of the weight
/// give split channels of the output; split input channels give partial sums.
/// Splits of rows and columns, within a weight's kernel and through groups are
/// gathered.

#include <cstdint>

#include "crosshatch/tensor/ops/windows.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct Conv2dOptions {
  WindowOptions windows = {};
  /// The number of groups of input and output channels. The channels of an
  /// output group depend on those of its input group only.
  int64_t groups = 1;
};

/// \param x [N, C, H, W]
/// \param weight [O, C / groups, kernel of H, kernel of W]
/// \param bias [O]; undefined for none
/// \returns [N, O, H', W'], with H' and W' as for Unfold. Channels are
///     innermost in memory.
Tensor Conv2d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv2dOptions& options = Conv2dOptions());

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
};

/// As Conv2d, of x [N, C, L] and weight [O, C / groups, kernel]: [N, O, L'].
Tensor Conv1d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv1dOptions& options = Conv1dOptions());

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CONV_H_
