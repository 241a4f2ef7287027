// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_

/// \file
/// The functions that CudaKernels() collects, each defined in the file of its
/// family.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

// copy.cu
void CudaCopy(const CopyArgs& args, KernelContext& context);
void CudaFill(const FillArgs& args, KernelContext& context);
void CudaArange(const ArangeArgs& args, KernelContext& context);
void CudaFromHost(const TransferArgs& args, KernelContext& context);
void CudaToHost(const TransferArgs& args, KernelContext& context);
// pointwise.cu
void CudaUnary(const UnaryArgs& args, KernelContext& context);
void CudaBinary(const BinaryArgs& args, KernelContext& context);
void CudaWhere(const WhereArgs& args, KernelContext& context);
void CudaSiluMul(const SiluMulArgs& args, KernelContext& context);
void CudaSiluMulBackward(const SiluMulBackwardArgs& args,
                         KernelContext& context);
// reduce.cu
void CudaReduce(const ReduceArgs& args, KernelContext& context);
// matmul.cu
int64_t CudaMatMulWorkspaceBytes(const MatMulArgs& args);
void CudaMatMul(const MatMulArgs& args, KernelContext& context);
// attention.cu
int64_t CudaAttentionWorkspaceBytes(const AttentionArgs& args);
void CudaAttention(const AttentionArgs& args, KernelContext& context);
// attention_backward.cu
int64_t CudaAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args);
void CudaAttentionBackward(const AttentionBackwardArgs& args,
                           KernelContext& context);
// rope.cu
void CudaRope(const RopeArgs& args, KernelContext& context);
// softmax.cu
void CudaSoftmax(const SoftmaxArgs& args, KernelContext& context);
void CudaSoftmaxBackward(const SoftmaxBackwardArgs& args,
                         KernelContext& context);
// norm.cu
void CudaRmsNorm(const RmsNormArgs& args, KernelContext& context);
int64_t CudaRmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args);
void CudaRmsNormBackward(const RmsNormBackwardArgs& args,
                         KernelContext& context);
void CudaLayerNorm(const LayerNormArgs& args, KernelContext& context);
int64_t CudaLayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args);
void CudaLayerNormBackward(const LayerNormBackwardArgs& args,
                           KernelContext& context);
// cross_entropy.cu
void CudaCrossEntropy(const CrossEntropyArgs& args, KernelContext& context);
void CudaCrossEntropyShard(const CrossEntropyShardArgs& args,
                           KernelContext& context);
void CudaCrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                              KernelContext& context);
// embedding.cu
void CudaEmbedding(const EmbeddingArgs& args, KernelContext& context);
int64_t CudaEmbeddingBackwardWorkspaceBytes(const EmbeddingBackwardArgs& args);
void CudaEmbeddingBackward(const EmbeddingBackwardArgs& args,
                           KernelContext& context);
// adamw.cu
void CudaAdamW(const AdamWArgs& args, KernelContext& context);
// random.cu
void CudaRandom(const RandomArgs& args, KernelContext& context);
// accumulate_ranks.cu
void CudaAccumulateRanks(const AccumulateRanksArgs& args,
                         KernelContext& context);
// gather.cu
void CudaGather(const GatherArgs& args, KernelContext& context);
// scatter.cu
void CudaScatter(const ScatterArgs& args, KernelContext& context);
// dropout.cu
void CudaDropout(const DropoutArgs& args, KernelContext& context);
// check_index_range.cu
void CudaCheckIndexRange(const CheckIndexRangeArgs& args,
                         KernelContext& context);
// cumsum.cu
void CudaCumSum(const CumSumArgs& args, KernelContext& context);
// sort.cu
int64_t CudaSortWorkspaceBytes(const SortArgs& args);
void CudaSort(const SortArgs& args, KernelContext& context);
// windows.cu
void CudaUnfold(const WindowsArgs& args, KernelContext& context);
void CudaFold(const WindowsArgs& args, KernelContext& context);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ENTRY_POINTS_H_
