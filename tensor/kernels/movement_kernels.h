// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_
#define CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_

/// \file
/// Kernels that move and make data.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/operands.h"

namespace crosshatch {

/// out = src, converted to out's dtype: any dtype to any other. Float to
/// integer truncates towards zero (NaN gives 0, out of range the nearest
/// limit), integer to narrower integer wraps, anything to bool asks for != 0,
/// and f64 reaches 16-bit floats by way of f32.
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

/// `bytes` bytes from host memory to the device's, or back. The host's stay
/// where they are until the work is done.
struct TransferArgs {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

/// What a device can do to move and make data.
struct MovementKernels {
  void (*copy)(const CopyArgs&, KernelContext&);
  void (*fill)(const FillArgs&, KernelContext&);
  void (*arange)(const ArangeArgs&, KernelContext&);
  void (*from_host)(const TransferArgs&, KernelContext&);
  void (*to_host)(const TransferArgs&, KernelContext&);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_MOVEMENT_KERNELS_H_
