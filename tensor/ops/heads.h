// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_OPS_HEADS_H_
#define CROSSHATCH_TENSOR_OPS_HEADS_H_

/// \file
/// Tensors [B, T, H, D] as arguments of kernels.

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/ops/launch.h"

namespace crosshatch::internal {

/// Returns `x`, or a copy whose last dim is contiguous.
inline Tensor DenseHeads(const Tensor& x) {
  return x.size(3) <= 1 || x.strides()[3] == 1 ? x : Dense(x);
}

/// \pre the last dim is contiguous
inline HeadsInput InputHeads(const Tensor& x) {
  return {x.raw_data(), x.strides()[0], x.strides()[1], x.strides()[2]};
}
inline HeadsOutput OutputHeads(const Tensor& x) {
  return {x.raw_data(), x.strides()[0], x.strides()[1], x.strides()[2]};
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_OPS_HEADS_H_
