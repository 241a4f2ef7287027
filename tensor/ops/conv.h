// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_CONV_H_
#define CROSSHATCH_TENSOR_OPS_CONV_H_

/// \file
/// Convolutions, as products of matrices: the windows of the input (windows.h)
/// times the weight. A batch that is split stays split, as do channels: those
/// of the output as the weight's outputs are, and of those of the input partial
/// sums come out. Rows and columns that are split are gathered, and so are
/// splits within a weight's kernel and those that cut through groups.

#include <cstdint>

#include "crosshatch/tensor/ops/windows.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct Conv2dOptions {
  WindowOptions windows = {};
  /// Channels of the input and of the output are cut into so many groups, and
  /// those of an output see those of their group alone.
  int64_t groups = 1;
};

/// \param x [N, C, H, W]
/// \param weight [O, C / groups, kernel of H, kernel of W]
/// \param bias [O]; undefined for none
/// \returns [N, O, H', W'] (Unfold says what H' is); channels lie innermost.
Tensor Conv2d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv2dOptions& options = Conv2dOptions());

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
  int64_t groups = 1;
};

/// As Conv2d of x [N, C, L] and weight [O, C / groups, kernel]: [N, O, L'].
Tensor Conv1d(const Tensor& x, const Tensor& weight,
              const Tensor& bias = Tensor(),
              const Conv1dOptions& options = Conv1dOptions());

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_OPS_CONV_H_
