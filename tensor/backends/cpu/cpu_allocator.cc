// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cpu/cpu_allocator.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "crosshatch/tensor/caching_allocator.h"

namespace crosshatch {
namespace {

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

std::unique_ptr<Allocator> MakeCpuAllocator(bool adversarial) {
  return MakeCachingAllocator(Device::Cpu(), std::make_unique<CpuMemory>(),
                              adversarial);
}

}  // namespace crosshatch
