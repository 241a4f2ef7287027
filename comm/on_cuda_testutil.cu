// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"
#include "crosshatch/comm/on_cuda_testutil.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch {

std::vector<const DeviceBackend*> OnCuda(int ranks, int devices) {
  std::vector<const DeviceBackend*> backends;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto backend = CudaBackend(rank % devices);
    CH_CHECK_OK(backend.status());
    backends.push_back(*backend);
  }
  return backends;
}

int HaveCudaDevices([[maybe_unused]] int devices) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  constexpr int64_t kBytesOfEach = int64_t{1} << 30;
  emulation::SetDevices(devices, kBytesOfEach);
#endif
  int there = 0;
  CH_CHECK_EQ(cudaGetDeviceCount(&there), cudaSuccess);
  return there;
}

void CopyOnCuda(void* to, const void* from, int64_t bytes) {
  cudaStream_t stream = nullptr;
  CH_CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
              cudaSuccess);
  CH_CHECK_EQ(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                              cudaMemcpyDefault, stream),
              cudaSuccess);
  CH_CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  CH_CHECK_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace crosshatch
