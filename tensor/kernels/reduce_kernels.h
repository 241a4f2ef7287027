// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REDUCE_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_REDUCE_KERNELS_H_

/// \file
/// Reductions over dims.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

enum class ReduceKind : uint8_t {
  kSum,
  kMean,
  kProduct,
  kMax,     ///< NaN if any is; of no elements: -inf, or the lowest integer.
  kMin,     ///< NaN if any is; of no elements: +inf, or the highest integer.
  kArgMax,  ///< The first of equals; NaN counts as largest. Not of no elements.
  kArgMin,  ///< The first of equals; NaN counts as smallest.
  kSumOfSquares,
};

/// out (=, +=) the reduction of `in` over the dims whose bit is set in
/// `reduced`.
///
/// Dtypes: the input's (floating point or integer), or f32 or f64 for floating
/// point input; sums of integers or bool may go to i64, max and min of bool to
/// bool; kArgMax and kArgMin give i64, the row-major index within the reduced
/// dims. An f64 out accumulates in double, integers in i64, all else in float.
///
/// Sums follow a tree that depends on the sizes and strides alone: a term is
/// added at most 37 times within its run, then once for each level of pairs of
/// runs. Of n terms |error| <= gamma(39 + ceil(log2(n))) * sum |x|, and the
/// rounding to a 16-bit out once.
struct ReduceArgs {
  ReduceKind kind = ReduceKind::kSum;
  /// Sizes of the input.
  KernelShape shape;
  /// Bit d: dim d is reduced.
  uint32_t reduced = 0;
  KernelInput in;
  /// Strides by the input's dims; those of reduced dims are ignored.
  KernelOutput out;
  /// kAccumulate: sum, mean and sum of squares only.
  WriteMode mode = WriteMode::kOverwrite;
};

/// The list of this family (kernel_table.h).
#define CH_REDUCE_KERNELS(K, W, d) K(d, reduce, Reduce, ReduceArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_REDUCE_KERNELS_H_
