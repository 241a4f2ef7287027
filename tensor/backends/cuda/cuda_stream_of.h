// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_OF_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_OF_H_

#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Returns the cudaStream_t to which a program issues its own kernels, within
/// work passed to LaunchKernel (docs/write_an_op.md). The stream orders them
/// after all that was issued to the rank's current stream before, and before
/// all that is issued later. That work runs at once, on the thread that issues
/// it; it issues and does not wait.
///
/// \param context that LaunchKernel called the work with. Ends the program if
///     the rank is on another device.
void* CudaStreamOf(KernelContext& context);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_OF_H_
