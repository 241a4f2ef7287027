// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_DEVICE_FUNCTION_H_
#define CROSSHATCH_TENSOR_DEVICE_FUNCTION_H_

/// CH_HOST_DEVICE marks a function that kernels of every device call.
#if defined(__CUDACC__)
#define CH_HOST_DEVICE __host__ __device__
#else
#define CH_HOST_DEVICE
#endif

#endif  // CROSSHATCH_TENSOR_DEVICE_FUNCTION_H_
