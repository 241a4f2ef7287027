// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_TYPED_ROWS_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_TYPED_ROWS_H_

/// \file
/// Rows of vectors with indices of 32 bits: a value that the host computes and
/// passes to TypedElementwiseKernel.

#include <bit>
#include <cstdint>
#include <limits>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"
#include "crosshatch/tensor/kernels/cuda/strided.h"

namespace crosshatch::internal {

/// Division by a number from 1 to 2^31 - 1, by a product.
struct Divider {
  uint32_t divisor = 1;
  uint32_t factor = 1;
  int shift = 0;

  Divider() = default;
  explicit Divider(uint32_t by)
      : divisor(by), shift(by == 1 ? 0 : std::bit_width(by - 1)) {
    const uint64_t rest = (uint64_t{1} << shift) - by;
    factor = static_cast<uint32_t>((rest << 32) / by + 1);
  }

  /// Returns n / divisor for n below 2^31.
  CH_HOST_DEVICE uint32_t Divide(uint32_t n) const {
    const auto high =
        static_cast<uint32_t>(static_cast<uint64_t>(n) * factor >> 32);
    return (high + n) >> shift;
  }
};

/// Operands of `vectors` vectors of 16 bytes, in rows that may end within one.
template <int kOperands>
struct TypedRows {
  void* data[kOperands] = {};
  uint32_t strides[kOperands] = {};
  uint32_t cols = 0;
  uint32_t vectors = 0;
  Divider vectors_per_row;

  /// Sets it to the operands of `strided`.
  /// \returns false if these have several dtypes, are not vectors of 16 bytes,
  ///     have an inner stride other than 1 or more than one other dim, or have
  ///     elements at 2^31 or beyond
  bool Make(const Strided<kOperands>& strided) {
    const StridedLoop& loop = strided.loop;
    const int inner = loop.ndim - 1;
    const DType dtype = strided.dtypes[0];
    if (loop.ndim > 2 || strided.width != VectorWidthOf(dtype)) return false;
    if (strided.vectors == 0 || !IsInt(strided.vectors)) return false;
    for (int o = 0; o < kOperands; ++o) {
      const int64_t stride = loop.ndim > 1 ? loop.strides[o][0] : 0;
      if (strided.dtypes[o] != dtype || loop.strides[o][inner] != 1 ||
          stride < 0 || !IsInt(stride) ||
          !IsInt((loop.rows() - 1) * stride + loop.inner())) {
        return false;
      }
      data[o] = strided.data[o];
      strides[o] = static_cast<uint32_t>(stride);
    }
    cols = static_cast<uint32_t>(loop.inner());
    vectors = static_cast<uint32_t>(strided.vectors);
    vectors_per_row = Divider(static_cast<uint32_t>(strided.vectors_per_row));
    return true;
  }

 private:
  static bool IsInt(int64_t value) {
    return value <= std::numeric_limits<int32_t>::max();
  }
};

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_TYPED_ROWS_H_
