// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_GLOBAL_INDEX_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_GLOBAL_INDEX_CUH_

/// \file
/// Random numbers by the index of an element in the global tensor.

#include <array>
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/operands.h"
#include "crosshatch/tensor/kernels/philox.h"

namespace crosshatch::internal {

/// A box of a tensor, whose elements count row-major.
struct Box {
  int ndim = 0;
  int64_t count = 1;
  int64_t sizes[kMaxKernelDims] = {};
  /// The stride of each dim in the global tensor's row-major order.
  int64_t steps[kMaxKernelDims] = {};
  /// The index of the box's first element there.
  int64_t first = 0;

  CH_HOST_DEVICE int64_t GlobalIndex(int64_t element) const {
    int64_t index = first;
    for (int d = ndim - 1; d >= 0; --d) {
      const int64_t next = element / sizes[d];
      index += (element - next * sizes[d]) * steps[d];
      element = next;
    }
    return index;
  }
};

inline Box MakeBox(const KernelShape& shape, const int64_t* offsets,
                   const int64_t* global_sizes) {
  Box box;
  box.ndim = shape.ndim;
  int64_t step = 1;
  for (int d = shape.ndim - 1; d >= 0; --d) {
    box.count *= shape.sizes[d];
    box.sizes[d] = shape.sizes[d];
    box.steps[d] = step;
    box.first += offsets[d] * step;
    step *= global_sizes[d];
  }
  return box;
}

/// Returns the random words of the element of that index in its tensor.
__device__ __forceinline__ std::array<uint32_t, 4> WordsOf(uint64_t key,
                                                           uint64_t stream,
                                                           int64_t element) {
  const auto e = static_cast<uint64_t>(element);
  return Philox(
      {static_cast<uint32_t>(e), static_cast<uint32_t>(e >> 32),
       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_GLOBAL_INDEX_CUH_
