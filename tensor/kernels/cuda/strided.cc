// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/kernels/cuda/strided.h"

#include <algorithm>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

namespace crosshatch::internal {
namespace {

bool Fits(const StridedLoop& loop, const StridedOperand& operand, int number,
          int width) {
  const int64_t* const strides = loop.strides[number];
  const int last = loop.ndim - 1;
  if (strides[last] == 0) return true;
  if (strides[last] != 1) return false;
  if (!IsVectorAligned(operand.data, operand.dtype, 0, width)) return false;
  return std::all_of(strides, strides + last,
                     [&](int64_t stride) { return stride % width == 0; });
}

}  // namespace

StridedLoop MakeLoop(const KernelShape& shape, const StridedOperand* operands,
                     int count) {
  const auto strides = [&](int o) { return operands[o].strides; };
  switch (count) {
    case 1:
      return StridedLoop::Make(shape, {strides(0)}, 0);
    case 2:
      return StridedLoop::Make(shape, {strides(0), strides(1)}, 1);
    case 3:
      return StridedLoop::Make(shape, {strides(0), strides(1), strides(2)}, 2);
    case 4:
      return StridedLoop::Make(
          shape, {strides(0), strides(1), strides(2), strides(3)}, 3);
    default:
      CH_CHECK_EQ(count, kMaxOperands);
      return StridedLoop::Make(
          shape, {strides(0), strides(1), strides(2), strides(3), strides(4)},
          4);
  }
}

int WidthOf(const StridedLoop& loop, const StridedOperand* operands, int count,
            int most) {
  int width = most;
  for (int o = 0; o < count; ++o) {
    if (loop.strides[o][loop.ndim - 1] == 0 && o + 1 < count) continue;
    width = std::min(width, VectorWidthOf(operands[o].dtype));
  }
  for (int o = 0; o < count && width > 1; ++o) {
    if (!Fits(loop, operands[o], o, width)) width = 1;
  }
  return width;
}

}  // namespace crosshatch::internal
