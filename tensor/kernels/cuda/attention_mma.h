// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_

/// \file
/// Attention whose products warps make on tensor cores, for which IsByMma.

#include "crosshatch/tensor/kernels/attention_kernels.h"

namespace crosshatch::internal::attention {

void MmaAttention(const AttentionArgs& args, KernelContext& context);

/// \param deltas for each query [batch, q_heads, q_len] the product of its
///     output and the gradient of that; behind all of them MaskShift, where
///     there are shifts
void MmaAttentionBackward(const AttentionBackwardArgs& args,
                          const float* deltas, KernelContext& context);

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
