// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/emulated_cuda_testutil.h"

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"

namespace crosshatch {

std::vector<const DeviceBackend*> OnEmulatedCuda(int ranks, int devices) {
  std::vector<const DeviceBackend*> backends;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto backend = CudaBackend(rank % devices);
    CH_CHECK_OK(backend.status());
    backends.push_back(*backend);
  }
  return backends;
}

void CopyOnEmulatedCuda(void* to, const void* from, int64_t bytes) {
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
