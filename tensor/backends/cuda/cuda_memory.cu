// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "crosshatch/tensor/backends/cuda/cuda_memory.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {
namespace {

/// Returns null if the runtime has no memory; the allocator reports the error
/// with the requested size.
std::byte* Memory(cudaError_t error, void* data, const char* what) {
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // The runtime keeps it otherwise.
    return nullptr;
  }
  CheckCuda(error, what);
  return static_cast<std::byte*>(data);
}

class CudaMemory : public MemorySource {
 public:
  explicit CudaMemory(int device) : device_(device) {}

  std::byte* Acquire(int64_t bytes) override {
    SetDevice();
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    return Memory(error, data, "cudaMalloc");
  }
  void Release(std::byte* data) override {
    SetDevice();
    CheckCuda(cudaFree(data), "cudaFree");
  }
  void SetAllBits(std::byte* data, int64_t bytes,
                  KernelContext& context) override {
    CheckCuda(cudaMemsetAsync(data, 0xFF, static_cast<size_t>(bytes),
                              StreamOf(context)),
              "cudaMemsetAsync");
  }

 protected:
  void SetDevice() { CheckCuda(cudaSetDevice(device_), "cudaSetDevice"); }

 private:
  const int device_;
};

class PinnedMemory final : public CudaMemory {
 public:
  using CudaMemory::CudaMemory;

  std::byte* Acquire(int64_t bytes) override {
    SetDevice();
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable);
    return Memory(error, data, "cudaHostAlloc");
  }
  void Release(std::byte* data) override {
    SetDevice();
    CheckCuda(cudaFreeHost(data), "cudaFreeHost");
  }
};

}  // namespace

std::unique_ptr<MemorySource> MakeCudaMemory(int device) {
  return std::make_unique<CudaMemory>(device);
}

std::unique_ptr<MemorySource> MakePinnedMemory(int device) {
  return std::make_unique<PinnedMemory>(device);
}

}  // namespace crosshatch::internal
