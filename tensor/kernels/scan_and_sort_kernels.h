// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_SCAN_AND_SORT_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_SCAN_AND_SORT_KERNELS_H_

/// \file
/// Scan and sort kernels along one dim. A *lane* is the elements that differ in
/// their index of that dim only.

#include <cstdint>

#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// out[i] = the sum of in[j] over j <= i of the lane, or over j >= i.
///
/// Dtypes: out is of the input's floating point dtype, or i64 for integers and
/// bool. Floats are summed in double in sequence, so |error| <= gamma(n) * sum
/// |x| in double, plus the rounding to out's dtype (to 16-bit dtypes via f32).
struct CumSumArgs {
  KernelShape shape;
  int dim = 0;
  KernelInput in;
  KernelOutput out;
  bool reverse = false;
};

/// The first `count` elements of each lane in sorted order, and their indices.
/// NaN comes after all other values (before them if descending). Equal
/// elements, including zeros of either sign and all NaN, are in the order of
/// their indices.
struct SortArgs {
  /// Sizes of the input.
  KernelShape shape;
  int dim = 0;
  /// Any dtype.
  KernelInput in;
  /// At most the size of `dim`, which gives a full sort.
  int64_t count = 0;
  bool descending = false;
  /// If false, the selected elements stay in the order of their indices.
  bool sorted = true;
  /// i64, of the input's sizes: the indices to report for the lane's elements.
  /// Null data: the elements' own.
  KernelInput labels;
  /// Of the input's sizes except for `count` in `dim`. Values have the input's
  /// dtype and its bits; indices are i64.
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
