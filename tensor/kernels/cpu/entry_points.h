// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_

/// \file
/// The functions that CpuKernels() collects, each defined in the file of its
/// family.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

// copy.cc
void CpuCopy(const CopyArgs& args, KernelContext& context);
void CpuFill(const FillArgs& args, KernelContext& context);
void CpuArange(const ArangeArgs& args, KernelContext& context);
void CpuTransfer(const TransferArgs& args, KernelContext& context);
// pointwise.cc
void CpuUnary(const UnaryArgs& args, KernelContext& context);
void CpuBinary(const BinaryArgs& args, KernelContext& context);
void CpuWhere(const WhereArgs& args, KernelContext& context);
void CpuSiluMul(const SiluMulArgs& args, KernelContext& context);
void CpuSiluMulBackward(const SiluMulBackwardArgs& args,
                        KernelContext& context);
// reduce.cc
void CpuReduce(const ReduceArgs& args, KernelContext& context);
// matmul.cc
int64_t CpuMatMulWorkspaceBytes(const MatMulArgs& args);
void CpuMatMul(const MatMulArgs& args, KernelContext& context);
// attention.cc
int64_t CpuAttentionWorkspaceBytes(const AttentionArgs& args);
void CpuAttention(const AttentionArgs& args, KernelContext& context);
int64_t CpuAttentionBackwardWorkspaceBytes(const AttentionBackwardArgs& args);
void CpuAttentionBackward(const AttentionBackwardArgs& args,
                          KernelContext& context);
// rope.cc
void CpuRope(const RopeArgs& args, KernelContext& context);
// softmax.cc
void CpuSoftmax(const SoftmaxArgs& args, KernelContext& context);
void CpuSoftmaxBackward(const SoftmaxBackwardArgs& args,
                        KernelContext& context);
// norm.cc
void CpuRmsNorm(const RmsNormArgs& args, KernelContext& context);
int64_t CpuRmsNormBackwardWorkspaceBytes(const RmsNormBackwardArgs& args);
void CpuRmsNormBackward(const RmsNormBackwardArgs& args,
                        KernelContext& context);
void CpuLayerNorm(const LayerNormArgs& args, KernelContext& context);
int64_t CpuLayerNormBackwardWorkspaceBytes(const LayerNormBackwardArgs& args);
void CpuLayerNormBackward(const LayerNormBackwardArgs& args,
                          KernelContext& context);
// cross_entropy.cc
void CpuCrossEntropy(const CrossEntropyArgs& args, KernelContext& context);
void CpuCrossEntropyShard(const CrossEntropyShardArgs& args,
                          KernelContext& context);
void CpuCrossEntropyBackward(const CrossEntropyBackwardArgs& args,
                             KernelContext& context);
// embedding.cc
void CpuEmbedding(const EmbeddingArgs& args, KernelContext& context);
int64_t CpuEmbeddingBackwardWorkspaceBytes(const EmbeddingBackwardArgs& args);
void CpuEmbeddingBackward(const EmbeddingBackwardArgs& args,
                          KernelContext& context);
// adamw.cc
void CpuAdamW(const AdamWArgs& args, KernelContext& context);
// random.cc
void CpuRandom(const RandomArgs& args, KernelContext& context);
// accumulate_ranks.cc
void CpuAccumulateRanks(const AccumulateRanksArgs& args,
                        KernelContext& context);
// gather.cc
void CpuGather(const GatherArgs& args, KernelContext& context);
// scatter.cc
void CpuScatter(const ScatterArgs& args, KernelContext& context);
// dropout.cc
void CpuDropout(const DropoutArgs& args, KernelContext& context);
// check_index_range.cc
void CpuCheckIndexRange(const CheckIndexRangeArgs& args,
                        KernelContext& context);
// cumsum.cc
void CpuCumSum(const CumSumArgs& args, KernelContext& context);
// sort.cc
int64_t CpuSortWorkspaceBytes(const SortArgs& args);
void CpuSort(const SortArgs& args, KernelContext& context);
// windows.cc
void CpuUnfold(const WindowsArgs& args, KernelContext& context);
void CpuFold(const WindowsArgs& args, KernelContext& context);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_ENTRY_POINTS_H_
