// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_SCAN_AND_SORT_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_SCAN_AND_SORT_H_

#include <cstdint>
#include <vector>

#include "crosshatch/tensor/kernels/reference/element.h"
#include "crosshatch/tensor/kernels/scan_and_sort_kernels.h"

namespace crosshatch::reference {

struct RunningSum {
  Reals values;
  Reals magnitudes;  ///< The sum of the terms' absolute values.
};
/// Row-major.
RunningSum CumSum(const CumSumArgs& args);

struct Sorted {
  Reals values;
  std::vector<int64_t> indices;
};
/// Row-major, of the output's sizes.
Sorted Sort(const SortArgs& args);

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_SCAN_AND_SORT_H_
