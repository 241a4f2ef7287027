// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_

/// \file
/// Attention with warp products on tensor cores, for problems with IsByMma.

#include "crosshatch/tensor/kernels/attention_kernels.h"

namespace crosshatch::internal::attention {

void MmaAttention(const AttentionArgs& args, KernelContext& context);

/// \param args the workspace has MmaBackwardLayout(args.forward).bytes bytes
void MmaAttentionBackward(const AttentionBackwardArgs& args,
                          KernelContext& context);

}  // namespace crosshatch::internal::attention

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ATTENTION_MMA_H_
