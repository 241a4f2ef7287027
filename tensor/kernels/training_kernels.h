// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_TRAINING_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_TRAINING_KERNELS_H_

/// \file
/// Kernels for training besides the ops: the optimizer, random values, sums
/// over ranks.

#include <cstdint>

#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// One step of torch.optim.AdamW's single-tensor form on `count` contiguous
/// float32 elements:
///   g = grad * *grad_scale; p *= 1 - lr * weight_decay;
///   m += (1 - beta1) * (g - m); v = beta2 * v + (1 - beta2) * g * g;
///   p -= lr / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + eps).
struct AdamWArgs {
  int64_t count = 0;
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  double bias_correction1 = 1;  ///< 1 - beta1^step
  double bias_correction2 = 1;  ///< 1 - beta2^step
  /// One element, read when the kernel runs; null stands for 1.
  const float* grad_scale = nullptr;
};

enum class RandomKind : uint8_t {
  kUniform,  ///< a + (b - a) * u with u in [0, 1), a multiple of 2^-24.
  kNormal,   ///< a + b * z with z standard normal.
};

/// Random values by global element index: an element of a tensor has the same
/// bits in whichever shard it is computed. An element of row-major index e in
/// the global tensor takes the Philox4x32-10 block of key `key` and counter
/// (low e, high e, low stream, high stream).
struct RandomArgs {
  RandomKind kind = RandomKind::kNormal;
  void* out = nullptr;  ///< Contiguous, of the box's sizes.
  DType dtype =
      DType::kFloat32;  ///< Floating point; made in f32, then rounded.
  uint64_t key = 0;
  uint64_t stream = 0;
  /// Sizes of the box that is filled.
  KernelShape box;
  /// The offsets of the box in the global tensor.
  int64_t offsets[kMaxKernelDims] = {};
  int64_t global_sizes[kMaxKernelDims] = {};
  double a = 0;
  double b = 1;
};

/// out[i] = scale * (sources[0][i] op sources[1][i] op ...), in this order, on
/// evenly spaced runs of contiguous elements. 16-bit floats accumulate in float
/// and are rounded once. ReduceOp::kAvg also divides by num_sources. Out may be
/// one of the sources.
struct AccumulateRanksArgs {
  ReduceOp op = ReduceOp::kSum;
  /// Array of num_sources >= 1 pointers; read while the kernel runs.
  const void* const* sources = nullptr;
  int num_sources = 0;
  void* out = nullptr;
  int64_t count = 0;                  ///< Elements of a run.
  DType dtype = DType::kFloat32;      ///< Of the sources.
  DType out_dtype = DType::kFloat32;  ///< `dtype`, or f32 for 16-bit floats.
  /// Floating point only (1 for integers).
  double scale = 1;
  int64_t runs = 1;
  /// Strides between runs: of each source, read while the kernel runs, and of
  /// out. Not used for one run.
  const int64_t* source_strides = nullptr;
  int64_t out_stride = 0;
};

/// The list of this family (kernel_table.h).
#define CH_TRAINING_KERNELS(K, W, d) \
  K(d, adamw, AdamW, AdamWArgs)      \
  K(d, random, Random, RandomArgs)   \
  K(d, accumulate_ranks, AccumulateRanks, AccumulateRanksArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_TRAINING_KERNELS_H_
