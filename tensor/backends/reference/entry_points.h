// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ENTRY_POINTS_H_
#define CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ENTRY_POINTS_H_

/// \file
/// The functions that the table of the reference device collects: the
/// definitions of tensor/kernels/reference, written where the args say. They
/// need no workspace.

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::reference {

// movement.cc
void CopyKernel(const CopyArgs& args, KernelContext& context);
void FillKernel(const FillArgs& args, KernelContext& context);
void ArangeKernel(const ArangeArgs& args, KernelContext& context);
void TransferKernel(const TransferArgs& args, KernelContext& context);
// pointwise.cc
void UnaryKernel(const UnaryArgs& args, KernelContext& context);
void BinaryKernel(const BinaryArgs& args, KernelContext& context);
void WhereKernel(const WhereArgs& args, KernelContext& context);
void SiluMulKernel(const SiluMulArgs& args, KernelContext& context);
void SiluMulBackwardKernel(const SiluMulBackwardArgs& args,
                           KernelContext& context);
// contractions.cc
void ReduceKernel(const ReduceArgs& args, KernelContext& context);
void MatMulKernel(const MatMulArgs& args, KernelContext& context);
void AttentionKernel(const AttentionArgs& args, KernelContext& context);
void AttentionBackwardKernel(const AttentionBackwardArgs& args,
                             KernelContext& context);
void RopeKernel(const RopeArgs& args, KernelContext& context);
// rows.cc
void SoftmaxKernel(const SoftmaxArgs& args, KernelContext& context);
void SoftmaxBackwardKernel(const SoftmaxBackwardArgs& args,
                           KernelContext& context);
void RmsNormKernel(const RmsNormArgs& args, KernelContext& context);
void RmsNormBackwardKernel(const RmsNormBackwardArgs& args,
                           KernelContext& context);
void LayerNormKernel(const LayerNormArgs& args, KernelContext& context);
void LayerNormBackwardKernel(const LayerNormBackwardArgs& args,
                             KernelContext& context);
void CrossEntropyKernel(const CrossEntropyArgs& args, KernelContext& context);
void CrossEntropyShardKernel(const CrossEntropyShardArgs& args,
                             KernelContext& context);
void CrossEntropyBackwardKernel(const CrossEntropyBackwardArgs& args,
                                KernelContext& context);
void EmbeddingKernel(const EmbeddingArgs& args, KernelContext& context);
void EmbeddingBackwardKernel(const EmbeddingBackwardArgs& args,
                             KernelContext& context);
// training.cc
void AdamWKernel(const AdamWArgs& args, KernelContext& context);
void RandomKernel(const RandomArgs& args, KernelContext& context);
void DropoutKernel(const DropoutArgs& args, KernelContext& context);
void AccumulateRanksKernel(const AccumulateRanksArgs& args,
                           KernelContext& context);
// indexed.cc
void GatherKernel(const GatherArgs& args, KernelContext& context);
void ScatterKernel(const ScatterArgs& args, KernelContext& context);
void CheckIndexRangeKernel(const CheckIndexRangeArgs& args,
                           KernelContext& context);
void CumSumKernel(const CumSumArgs& args, KernelContext& context);
void SortKernel(const SortArgs& args, KernelContext& context);
// windows.cc
void UnfoldKernel(const WindowsArgs& args, KernelContext& context);
void FoldKernel(const WindowsArgs& args, KernelContext& context);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_BACKENDS_REFERENCE_ENTRY_POINTS_H_
