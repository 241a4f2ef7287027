// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_

/// \file
/// Attention with warp products on tensor cores, for problems with IsByMma.

#include "crosshatch/tensor/kernels/attention_kernels.h"

namespace crosshatch::internal::attention {

void MmaAttention(const AttentionArgs& args, KernelContext& context);

/// \param deltas for each query [batch, q_heads, q_len] the product of its
///     output and the gradient of that. After all of them come the MaskShifts,
///     if any.
void MmaAttentionBackward(const AttentionBackwardArgs& args,
                          const float* deltas, KernelContext& context);

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
