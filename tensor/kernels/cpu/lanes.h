// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_LANES_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_LANES_H_

/// \file
/// The lanes of a tensor along one dim, by number.

#include <cstdint>

#include "crosshatch/tensor/kernels/kernel_table.h"

namespace crosshatch::internal {

/// Lanes count in row-major order of the other dims.
class Lanes {
 public:
  Lanes(const KernelShape& shape, int dim) {
    for (int d = 0; d < shape.ndim; ++d) {
      if (d == dim) continue;
      dims_[ndim_] = d;
      sizes_[ndim_++] = shape.sizes[d];
      count_ *= shape.sizes[d];
    }
  }

  int64_t count() const { return count_; }

  /// Where lane `lane` of an operand starts, in elements.
  int64_t Offset(int64_t lane, const int64_t* strides) const {
    int64_t offset = 0;
    for (int i = ndim_ - 1; i >= 0; --i) {
      offset += lane % sizes_[i] * strides[dims_[i]];
      lane /= sizes_[i];
    }
    return offset;
  }

 private:
  int ndim_ = 0;
  int dims_[kMaxKernelDims] = {};
  int64_t sizes_[kMaxKernelDims] = {};
  int64_t count_ = 1;
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_LANES_H_
