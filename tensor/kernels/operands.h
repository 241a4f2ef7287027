// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_OPERANDS_H_
#define CROSSHATCH_TENSOR_KERNELS_OPERANDS_H_

/// \file
/// The components of all kernels' arguments, and the rules for all kernels.
///
/// - Args are plain values: an op copies them into the task that it launches.
///   What they point to must stay valid until the work is done.
/// - Sizes, strides and counts are in elements, workspaces in bytes. Strides
///   may be zero (broadcast) for inputs, and negative.
/// - Any size may be zero; the pointers may then be null.
/// - The caller has checked shapes and dtypes. A combination that a kernel does
///   not support fails a check that names the kernel.
/// - bf16 and f16 are computed in float32 and rounded once, when written; f64
///   in float64. Integer arithmetic wraps.
/// - Results depend only on the args, bit for bit, and not on the number of
///   threads. No kernel allocates. A kernel that needs workspace has a
///   *_workspace_bytes function (of sizes, strides and dtypes, never of
///   pointers) and receives it in the args.
/// - Outputs do not overlap inputs, with one exception: an elementwise kernel
///   (unary, binary, where, silu_mul, rope, softmax, cross_entropy_backward,
///   the norms' forward) may write exactly in place of an input of the same
///   dtype and strides.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch {

struct KernelContext;

/// The maximum number of dims of a kernel's operands.
inline constexpr int kMaxKernelDims = 8;

/// Sizes that the operands of a kernel share, outermost first.
struct KernelShape {
  int ndim = 0;
  int64_t sizes[kMaxKernelDims] = {};
};

/// A strided operand that is read. Strides are those of the kernel's shape, 0
/// if the operand is broadcast.
struct KernelInput {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t strides[kMaxKernelDims] = {};
};

/// A strided operand that is written; no two elements overlap.
struct KernelOutput {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t strides[kMaxKernelDims] = {};
};

/// What happens to the old content of an output.
enum class WriteMode : uint8_t {
  kOverwrite,   ///< It is not read: undefined memory is fine.
  kAccumulate,  ///< The result is added to it (in the compute type).
};

/// Returns the dtype of statistics that a kernel stores with a result of
/// `dtype` (log-sum-exp, mean, 1/std, row losses): f64 for f64, else f32.
constexpr DType StatisticsDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_KERNELS_OPERANDS_H_
