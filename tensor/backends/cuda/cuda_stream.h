// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_H_
#define CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_H_

#include <memory>
#include <string>

#include "crosshatch/tensor/backends/cuda/cuda_options.h"
#include "crosshatch/tensor/device_backend.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Returns a stream of a device. A task runs at once, on the issuing thread,
/// and issues the device's work with a CudaKernelContext. LaunchHost puts its
/// task into the device's queue. The destructor waits until all issued work is
/// done.
std::unique_ptr<Stream> MakeCudaStream(int device, const std::string& name,
                                       const RankParts& rank,
                                       const CudaOptions& options = {});

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_BACKENDS_CUDA_CUDA_STREAM_H_
