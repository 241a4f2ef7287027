// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CPU_COPY_RUN_H_
#define CROSSHATCH_TENSOR_KERNELS_CPU_COPY_RUN_H_

/// \file
/// Copies runs of elements of one dtype, of which only the size matters.

#include <cstdint>

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::internal {

/// Element i * to_stride of `to` becomes element i * from_stride of `from`, for
/// i < count; strides count elements, and one of `from` may be 0. The runs do
/// not overlap.
void CopyRun(const void* from, int64_t from_stride, void* to, int64_t to_stride,
             DType dtype, int64_t count);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CPU_COPY_RUN_H_
