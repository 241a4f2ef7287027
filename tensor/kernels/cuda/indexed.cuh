// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_INDEXED_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_INDEXED_CUH_

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/complain.cuh"
#include "crosshatch/tensor/kernels/cuda/element.cuh"
#include "crosshatch/tensor/kernels/index_kernels.h"

namespace crosshatch::internal {

/// The indexed dim.
struct IndexedPlaces {
  int dim;
  int64_t first;
  int64_t count;
  int64_t bound;
  /// The stride of that dim in the indexed tensor.
  int64_t stride;
  Complainer complainer;

  /// Returns the position of an index; -1, with a complaint, if it is out of
  /// range.
  __device__ __forceinline__ int64_t Of(const void* index, DType dtype,
                                        int64_t offset) const {
    const int64_t named = LoadIndex(index, dtype, offset);
    if (named < 0 || named >= bound) {
      Complain(complainer, named, dim, bound);
      return -1;
    }
    return named - first;
  }
  __device__ __forceinline__ bool IsHere(int64_t place) const {
    return place >= 0 && place < count;
  }
};

inline IndexedPlaces PlacesOf(const IndexedDim& at, int64_t stride,
                              KernelContext& context) {
  return {at.dim,   at.first,
          at.count, at.bound,
          stride,   ComplainerOf(context, ComplaintKind::kIndexOfDim, at.op)};
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_INDEXED_CUH_
