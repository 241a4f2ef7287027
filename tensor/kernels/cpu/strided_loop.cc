// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "crosshatch/tensor/kernels/cpu/element.h"

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

namespace {

template <typename T>
void CopyStrided(const T* from, int64_t from_stride, T* to, int64_t to_stride,
                 int64_t count) {
  if (from_stride == 0) {
    const T value = *from;
    if (to_stride == 1) {
      std::fill(to, to + count, value);
      return;
    }
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = value;
  } else if (to_stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * from_stride];
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i * to_stride] = from[i * from_stride];
    }
  }
}

}  // namespace

void CopyRun(const void* from, int64_t from_stride, void* to, int64_t to_stride,
             DType dtype, int64_t count) {
  if (count <= 0) return;
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count * SizeOf(dtype)));
    return;
  }
  DispatchSize(dtype, [&](auto element) {
    using T = decltype(element);
    CopyStrided(static_cast<const T*>(from), from_stride, static_cast<T*>(to),
                to_stride, count);
  });
}

}  // namespace crosshatch::internal
