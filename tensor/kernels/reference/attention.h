// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_ATTENTION_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_ATTENTION_H_

/// \file
/// Attention with the whole matrix of probabilities of one head at a time.
/// Tensors are row-major [B, T, H, D], log-sum-exps [B, H, T].

#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/kernels/reference/element.h"

namespace crosshatch::reference {

/// Each result with what its error is proportional to: the sum of the absolute
/// values of its terms. `score_magnitude` is the largest scale * sum |q| |k| +
/// |mask - slope * |distance|| of any pair that is seen, which the errors of
/// scores go by.
struct Attention {
  Reals out, out_magnitudes;
  Reals logsumexp;
  Real score_magnitude = 0;
};
Attention AttentionForward(const AttentionArgs& args);

struct AttentionGradients {
  Reals dq, dq_magnitudes;
  Reals dk, dk_magnitudes;
  Reals dv, dv_magnitudes;
};
AttentionGradients AttentionBackward(const AttentionBackwardArgs& args);

/// A [B, T, H, D] operand as read by a kernel.
Reals ReadHeads(const HeadsInput& x, DType dtype, int64_t batch, int64_t time,
                int64_t heads, int64_t dim);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_ATTENTION_H_
