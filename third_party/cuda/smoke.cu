// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "crosshatch/third_party/cuda/smoke.h"

namespace crosshatch::internal {
namespace {

__global__ void AddOne(float* values, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += 1.0f;
}

}  // namespace

int CountCudaDevices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool AddOneOnDevice(float* values, int n) {
  const size_t bytes = n * sizeof(float);
  float* device = nullptr;
  if (cudaMalloc(&device, bytes) != cudaSuccess) return false;
  bool ok =
      cudaMemcpy(device, values, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
  if (ok) {
    AddOne<<<(n + 255) / 256, 256>>>(device, n);
    ok = cudaGetLastError() == cudaSuccess &&
         cudaMemcpy(values, device, bytes, cudaMemcpyDeviceToHost) ==
             cudaSuccess;
  }
  return cudaFree(device) == cudaSuccess && ok;
}

}  // namespace crosshatch::internal
