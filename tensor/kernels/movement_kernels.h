// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_

/// \file
/// Kernels that move and create data.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// out = src, converted from any dtype to any other. Float to integer truncates
/// towards zero (NaN gives 0, out of range the nearest limit), integer to
/// narrower integer wraps, conversion to bool tests for != 0, and f64 is
/// converted to 16-bit floats via f32.
struct CopyArgs {
  KernelShape shape;
  KernelInput src;
  KernelOutput out;
  /// Floating point and integers only: out += src.
  WriteMode mode = WriteMode::kOverwrite;
};

/// out = value, converted.
struct FillArgs {
  KernelShape shape;
  KernelOutput out;
  double value = 0;
};

/// out[i] = start + i * step, for contiguous out.
struct ArangeArgs {
  void* out = nullptr;
  DType dtype = DType::kInt64;
  int64_t count = 0;
  double start = 0;
  double step = 1;
};

/// `bytes` bytes from host memory to the device's, or back. The host memory
/// must stay valid until the work is done.
struct TransferArgs {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

/// The list of this family (kernel_table.h).
#define CH_MOVEMENT_KERNELS(K, W, d)      \
  K(d, copy, Copy, CopyArgs)              \
  K(d, fill, Fill, FillArgs)              \
  K(d, arange, Arange, ArangeArgs)        \
  K(d, from_host, FromHost, TransferArgs) \
  K(d, to_host, ToHost, TransferArgs)

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_
