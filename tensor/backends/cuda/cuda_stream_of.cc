// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_stream_of.h"

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch {

void* CudaStreamOf(KernelContext& context) {
  const Device device = RankContext::Current().device();
  CH_CHECK(device.kind() == Device::Kind::kCuda)
      << "CudaStreamOf on a rank whose device is " << device
      << ": issue a kernel of CUDA for tensors on a CUDA device alone";
  return internal::CudaContextOf(context).stream;
}

}  // namespace crosshatch
