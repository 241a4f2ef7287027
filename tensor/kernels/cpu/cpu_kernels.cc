// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"

#include "crosshatch/tensor/kernels/cpu/entry_points.h"

namespace crosshatch {

const KernelTable& CpuKernels() {
  static constexpr KernelTable kTable = {
      MovementKernels{
          .copy = internal::CpuCopy,
          .fill = internal::CpuFill,
          .arange = internal::CpuArange,
          .from_host = internal::CpuTransfer,
          .to_host = internal::CpuTransfer,
      },
      PointwiseKernels{
          .unary = internal::CpuUnary,
          .binary = internal::CpuBinary,
          .where = internal::CpuWhere,
          .silu_mul = internal::CpuSiluMul,
          .silu_mul_backward = internal::CpuSiluMulBackward,
      },
      ReduceKernels{
          .reduce = internal::CpuReduce,
      },
      MatMulKernels{
          .matmul_workspace_bytes = internal::CpuMatMulWorkspaceBytes,
          .matmul = internal::CpuMatMul,
      },
      AttentionKernels{
          .attention_workspace_bytes = internal::CpuAttentionWorkspaceBytes,
          .attention = internal::CpuAttention,
          .attention_backward_workspace_bytes =
              internal::CpuAttentionBackwardWorkspaceBytes,
          .attention_backward = internal::CpuAttentionBackward,
          .rope = internal::CpuRope,
      },
      RowKernels{
          .softmax = internal::CpuSoftmax,
          .softmax_backward = internal::CpuSoftmaxBackward,
          .rms_norm = internal::CpuRmsNorm,
          .rms_norm_backward_workspace_bytes =
              internal::CpuRmsNormBackwardWorkspaceBytes,
          .rms_norm_backward = internal::CpuRmsNormBackward,
          .layer_norm = internal::CpuLayerNorm,
          .layer_norm_backward_workspace_bytes =
              internal::CpuLayerNormBackwardWorkspaceBytes,
          .layer_norm_backward = internal::CpuLayerNormBackward,
          .cross_entropy = internal::CpuCrossEntropy,
          .cross_entropy_shard = internal::CpuCrossEntropyShard,
          .cross_entropy_backward = internal::CpuCrossEntropyBackward,
          .embedding = internal::CpuEmbedding,
          .embedding_backward_workspace_bytes =
              internal::CpuEmbeddingBackwardWorkspaceBytes,
          .embedding_backward = internal::CpuEmbeddingBackward,
      },
      TrainingKernels{
          .adamw = internal::CpuAdamW,
          .random = internal::CpuRandom,
          .accumulate_ranks = internal::CpuAccumulateRanks,
      },
      IndexKernels{
          .gather = internal::CpuGather,
          .scatter = internal::CpuScatter,
          .dropout = internal::CpuDropout,
          .check_index_range = internal::CpuCheckIndexRange,
      },
      LaneKernels{
          .cumsum = internal::CpuCumSum,
          .sort_workspace_bytes = internal::CpuSortWorkspaceBytes,
          .sort = internal::CpuSort,
      },
      WindowKernels{
          .unfold = internal::CpuUnfold,
          .fold = internal::CpuFold,
      },
  };
  return kTable;
}

}  // namespace crosshatch
