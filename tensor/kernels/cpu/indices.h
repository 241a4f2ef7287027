// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_INDICES_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_INDICES_H_

/// \file
/// Reads indices of all index dtypes.

#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/index_kernels.h"

namespace crosshatch::internal {

/// Calls f(T()) with the C++ type of the indices.
template <typename F>
void DispatchIndices(const IndexedDim& at, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt32:
      return f(int32_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    default:
      CH_CHECK(dtype == DType::kInt64)
          << at.op << " kernel: indices of " << Name(dtype);
      return f(int64_t{});
  }
}

/// Returns the position of `index` in the local tensor: outside of [0,
/// at.count) if it is not local. Checks that the index is in range.
inline int64_t PlaceOf(const IndexedDim& at, int64_t index) {
  CH_CHECK(index >= 0 && index < at.bound)
      << at.op << ": index " << index << " is out of range: dim " << at.dim
      << " has " << at.bound << " elements";
  return index - at.first;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_INDICES_H_
