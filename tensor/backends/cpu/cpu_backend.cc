// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cpu/cpu_backend.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "crosshatch/tensor/kernels/cpu/cpu_kernels.h"

namespace crosshatch {
namespace {

class Cpu final : public DeviceBackend {
 public:
  Cpu()
      : DeviceBackend(Device::Cpu(), CpuKernels(), /*host_addressable=*/true) {}

  std::unique_ptr<Stream> MakeStream(const std::string& name, StreamRole role,
                                     const RankParts& rank) const override {
    return MakeCpuStream(name, role, rank);
  }
  std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const override {
    return MakeCpuAllocator(adversarial);
  }
  std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const override {
    return MakeCpuAllocator(adversarial);
  }
};

constexpr size_t kAlignment = 64;

class CpuMemory final : public MemorySource {
 public:
  std::byte* Acquire(int64_t bytes) override {
    return static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, static_cast<size_t>(bytes)));
  }
  void Release(std::byte* data) override { std::free(data); }
  void SetAllBits(std::byte* data, int64_t bytes,
                  KernelContext& /*context*/) override {
    std::memset(data, 0xFF, static_cast<size_t>(bytes));
  }
};

}  // namespace

const DeviceBackend& CpuBackend() {
  static const Cpu backend;
  return backend;
}

std::unique_ptr<Allocator> MakeCpuAllocator(bool adversarial) {
  return MakeCachingAllocator(Device::Cpu(), std::make_unique<CpuMemory>(),
                              adversarial);
}

}  // namespace crosshatch
