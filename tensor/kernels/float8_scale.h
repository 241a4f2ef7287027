// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_FLOAT8_SCALE_H_
#define CROSSHATCH_TENSOR_KERNELS_FLOAT8_SCALE_H_

#include <bit>
#include <cstdint>

#include "crosshatch/tensor/device_function.h"
#include "crosshatch/tensor/half_bits.h"

namespace crosshatch::internal {

/// Returns the scale of Float8ScaleArgs, with the same bits on every device.
CH_HOST_DEVICE inline float Float8ScaleOf(float amax, float largest,
                                          bool power_of_two) {
  constexpr double kLeast = 1e-12;
  const double bounded = amax <= kLeast ? kLeast : static_cast<double>(amax);
  const auto scale = static_cast<float>(largest / bounded);
  if (!power_of_two || scale != scale) return scale;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & kInfinity32);
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_FLOAT8_SCALE_H_
