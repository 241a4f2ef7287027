// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cpu/copy_run.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "crosshatch/tensor/kernels/cpu/element.h"

namespace crosshatch::internal {
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
