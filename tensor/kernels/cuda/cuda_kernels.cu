// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"
#include "crosshatch/tensor/kernels/cuda/entry_points.h"

namespace crosshatch {

const KernelTable& CudaKernels() {
  static constexpr KernelTable kTable = {
      MovementKernels{
          .copy = internal::CudaCopy,
          .fill = internal::CudaFill,
          .arange = internal::CudaArange,
          .from_host = internal::CudaFromHost,
          .to_host = internal::CudaToHost,
      },
      PointwiseKernels{
          .unary = internal::CudaUnary,
          .binary = internal::CudaBinary,
          .where = internal::CudaWhere,
          .silu_mul = internal::CudaSiluMul,
          .silu_mul_backward = internal::CudaSiluMulBackward,
      },
      ReduceKernels{
          .reduce = internal::CudaReduce,
      },
      MatMulKernels{
          .matmul_workspace_bytes = internal::CudaMatMulWorkspaceBytes,
          .matmul = internal::CudaMatMul,
      },
      AttentionKernels{
          .attention_workspace_bytes = internal::CudaAttentionWorkspaceBytes,
          .attention = internal::CudaAttention,
          .attention_backward_workspace_bytes =
              internal::CudaAttentionBackwardWorkspaceBytes,
          .attention_backward = internal::CudaAttentionBackward,
          .rope = internal::CudaRope,
      },
      RowKernels{
          .softmax = internal::CudaSoftmax,
          .softmax_backward = internal::CudaSoftmaxBackward,
          .rms_norm = internal::CudaRmsNorm,
          .rms_norm_backward_workspace_bytes =
              internal::CudaRmsNormBackwardWorkspaceBytes,
          .rms_norm_backward = internal::CudaRmsNormBackward,
          .layer_norm = internal::CudaLayerNorm,
          .layer_norm_backward_workspace_bytes =
              internal::CudaLayerNormBackwardWorkspaceBytes,
          .layer_norm_backward = internal::CudaLayerNormBackward,
          .cross_entropy = internal::CudaCrossEntropy,
          .cross_entropy_shard = internal::CudaCrossEntropyShard,
          .cross_entropy_backward = internal::CudaCrossEntropyBackward,
          .embedding = internal::CudaEmbedding,
          .embedding_backward_workspace_bytes =
              internal::CudaEmbeddingBackwardWorkspaceBytes,
          .embedding_backward = internal::CudaEmbeddingBackward,
      },
      TrainingKernels{
          .adamw = internal::CudaAdamW,
          .random = internal::CudaRandom,
          .accumulate_ranks = internal::CudaAccumulateRanks,
      },
      IndexKernels{
          .gather = internal::CudaGather,
          .scatter = internal::CudaScatter,
          .dropout = internal::CudaDropout,
          .check_index_range = internal::CudaCheckIndexRange,
      },
      LaneKernels{
          .cumsum = internal::CudaCumSum,
          .sort_workspace_bytes = internal::CudaSortWorkspaceBytes,
          .sort = internal::CudaSort,
      },
      WindowKernels{
          .unfold = internal::CudaUnfold,
          .fold = internal::CudaFold,
      },
  };
  return kTable;
}

}  // namespace crosshatch
