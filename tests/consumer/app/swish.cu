// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "app/swish.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/backends/cuda/cuda_stream_of.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/launch.h"
#include "crosshatch/tensor/ops/ops.h"

namespace consumer {
namespace {

namespace ch = crosshatch;

// [kernel]
__global__ void SwishKernel(const float* from, float* to, int64_t n,
                            float slope) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i] / (1 + expf(-slope * from[i]));
}

void LaunchSwish(const ch::Tensor& x, const ch::Tensor& y, float slope) {
  if (x.numel() == 0) return;
  ch::LaunchKernel([from = x.data<float>(), to = y.data<float>(), n = x.numel(),
                    slope](ch::KernelContext& on) {
    constexpr int kThreads = 256;
    const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
    const auto stream = static_cast<cudaStream_t>(ch::CudaStreamOf(on));
    SwishKernel<<<blocks, kThreads, 0, stream>>>(from, to, n, slope);
    CH_CHECK_EQ(cudaGetLastError(), cudaSuccess);
  });
}
// [/kernel]

}  // namespace

ch::Tensor Swish(const ch::Tensor& x, float slope) {
  const ch::Tensor from = ch::Contiguous(x);
  const ch::Tensor to = ch::Empty(from.sizes(), from.dtype());
  LaunchSwish(from, to, slope);
  return to;
}

}  // namespace consumer
