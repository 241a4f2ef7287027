// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/tensor/backends/cuda/cuda_backend.h"
#include "crosshatch/tensor/backends/cuda/cuda_memory.h"
#include "crosshatch/tensor/backends/cuda/cuda_stream.h"
#include "crosshatch/tensor/caching_allocator.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/cuda_kernels.h"

namespace crosshatch {
namespace {

class Cuda final : public DeviceBackend {
 public:
  explicit Cuda(int index)
      : DeviceBackend(Device::Cuda(index), CudaKernels(),
                      /*host_addressable=*/false) {}

  std::unique_ptr<Stream> MakeStream(const std::string& name,
                                     StreamRole /*role*/,
                                     const RankParts& rank) const override {
    return internal::MakeCudaStream(device().index(), name, rank);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return MakeCachingAllocator(
        device(), internal::MakeCudaMemory(device().index()), adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return MakeCachingAllocator(Device::Cpu(),
                                internal::MakePinnedMemory(device().index()),
                                adversarial);
  }
};

}  // namespace

absl::StatusOr<const DeviceBackend*> CudaBackend(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // The runtime keeps it otherwise.
    return absl::NotFoundError(
        absl::StrCat("no CUDA device: ", cudaGetErrorName(error), " (",
                     cudaGetErrorString(error), ")"));
  }
  if (index < 0 || index >= count) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", index,
                                            ": the process sees ", count,
                                            ", counted from 0"));
  }
  static std::mutex mutex;
  static auto* const backends = new std::map<int, Cuda>;
  std::lock_guard<std::mutex> lock(mutex);
  return &backends->try_emplace(index, index).first->second;
}

}  // namespace crosshatch
