// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"

#include <cstdlib>
#include <utility>

namespace crosshatch::internal {

StridedLoop StridedLoop::Make(const KernelShape& shape,
                              std::initializer_list<const int64_t*> strides,
                              int order_by) {
  StridedLoop loop;
  loop.operands = static_cast<int>(strides.size());

  int dims[kMaxKernelDims];
  int ndim = 0;
  for (int d = 0; d < shape.ndim; ++d) {
    if (shape.sizes[d] != 1) dims[ndim++] = d;
  }
  if (order_by >= 0) {
    const int64_t* key = strides.begin()[order_by];
    for (int i = 1; i < ndim; ++i) {
      for (int j = i;
           j > 0 && std::abs(key[dims[j - 1]]) < std::abs(key[dims[j]]); --j) {
        std::swap(dims[j - 1], dims[j]);
      }
    }
  }

  int last = -1;
  for (int i = 0; i < ndim; ++i) {
    const int d = dims[i];
    bool merges = last >= 0;
    for (int o = 0; merges && o < loop.operands; ++o) {
      merges = loop.strides[o][last] == strides.begin()[o][d] * shape.sizes[d];
    }
    if (merges) {
      loop.sizes[last] *= shape.sizes[d];
    } else {
      loop.sizes[++last] = shape.sizes[d];
    }
    for (int o = 0; o < loop.operands; ++o) {
      loop.strides[o][last] = strides.begin()[o][d];
    }
  }
  loop.ndim = std::max(last + 1, 1);
  return loop;
}

}  // namespace crosshatch::internal
