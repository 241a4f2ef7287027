// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_SCAN_AND_SORT_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_SCAN_AND_SORT_KERNELS_H_

/// \file
/// Kernels that work along one dim, on each *lane* of a tensor: the elements
/// that differ in their index of that dim only.

#include <cstdint>

#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// out[i] = the sum of in[j] over j <= i of the lane, or over j >= i.
///
/// Dtypes: out is of the input's floating point dtype, or i64 for integers and
/// bool. Floats are summed in double one after the other, so that |error| <=
/// gamma(n) * sum |x| in double, and the rounding to out's dtype (of 16-bit
/// ones by way of f32).
struct CumSumArgs {
  KernelShape shape;
  int dim = 0;
  KernelInput in;
  KernelOutput out;
  bool reverse = false;
};

/// Of each lane the `count` elements that come first, and their indices. NaN
/// comes after all other values (before them where descending); equal elements,
/// which zeros of either sign and all NaN are, in the order of their indices.
struct SortArgs {
  /// Sizes of the input.
  KernelShape shape;
  int dim = 0;
  /// Any dtype.
  KernelInput in;
  /// At most the size of `dim`, which is for a sort.
  int64_t count = 0;
  bool descending = false;
  /// Else what is taken stays in the order of its indices.
  bool sorted = true;
  /// i64, of the input's sizes: what the lane's elements are called. Null data:
  /// by their index.
  KernelInput labels;
  /// Of the input's sizes but for `count` in `dim`. Values have the input's
  /// dtype and its bits, indices are i64.
  KernelOutput values;
  KernelOutput indices;
  /// sort_workspace_bytes(args) bytes, aligned to 64; null if 0.
  void* workspace = nullptr;
};

/// The list of this family (kernel_table.h).
#define CH_SCAN_AND_SORT_KERNELS(K, W, d) \
  K(d, cumsum, CumSum, CumSumArgs)        \
  W(d, sort, Sort, SortArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_SCAN_AND_SORT_KERNELS_H_
