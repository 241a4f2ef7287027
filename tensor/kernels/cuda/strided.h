// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_STRIDED_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_STRIDED_H_

/// \file
/// Loops of elementwise kernels over strided operands: as few dims as the
/// strides allow, the inner one in vectors. A value that the host computes and
/// passes as a kernel parameter.

#include <cstdint>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/cpu/strided_loop.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch::internal {

/// An operand of an elementwise kernel, read or written.
struct StridedOperand {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  const int64_t* strides = nullptr;
};
inline StridedOperand AsOperand(const KernelInput& input) {
  return {const_cast<void*>(input.data), input.dtype, input.strides};
}
inline StridedOperand AsOperand(const KernelOutput& output) {
  return {output.data, output.dtype, output.strides};
}

/// Operands and the loop over them.
template <int kOperands>
struct Strided {
  StridedLoop loop;
  void* data[kOperands] = {};
  DType dtypes[kOperands] = {};
  /// Elements of the inner dim that a thread processes at once. If it is not 1,
  /// every operand has stride 1 or 0 in that dim.
  int width = 1;
  int64_t vectors_per_row = 0;
  int64_t vectors = 0;

  /// Returns the start of vector `vector`: its position in the inner dim, and
  /// the offset of its first element in each operand.
  CH_HOST_DEVICE int64_t Locate(int64_t vector,
                                int64_t (&offsets)[kOperands]) const {
    int64_t row = vector / vectors_per_row;
    const int64_t start = (vector - row * vectors_per_row) * width;
    for (int o = 0; o < kOperands; ++o) {
      offsets[o] = start * loop.strides[o][loop.ndim - 1];
    }
    for (int d = loop.ndim - 2; d >= 0; --d) {
      const int64_t next = row / loop.sizes[d];
      const int64_t index = row - next * loop.sizes[d];
      for (int o = 0; o < kOperands; ++o) {
        offsets[o] += index * loop.strides[o][d];
      }
      row = next;
    }
    return start;
  }
};

/// Returns the widest vectors that all operands allow: at most `most` elements
/// and 16 bytes, a power of two; 1 if some operand's inner stride is neither 1
/// nor 0. If rows end within a vector, their starts are still aligned.
int WidthOf(const StridedLoop& loop, const StridedOperand* operands, int count,
            int most);

/// Returns the loop in the order of the last operand's memory.
StridedLoop MakeLoop(const KernelShape& shape, const StridedOperand* operands,
                     int count);

/// The last operand is written; the loop is in the order of its memory.
template <int kOperands>
Strided<kOperands> MakeStrided(const KernelShape& shape,
                               const StridedOperand (&operands)[kOperands],
                               int most_width) {
  Strided<kOperands> strided;
  for (int o = 0; o < kOperands; ++o) {
    strided.data[o] = operands[o].data;
    strided.dtypes[o] = operands[o].dtype;
  }
  strided.loop = MakeLoop(shape, operands, kOperands);
  strided.width = WidthOf(strided.loop, operands, kOperands, most_width);
  strided.vectors_per_row =
      (strided.loop.inner() + strided.width - 1) / strided.width;
  strided.vectors = strided.loop.rows() * strided.vectors_per_row;
  return strided;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_STRIDED_H_
