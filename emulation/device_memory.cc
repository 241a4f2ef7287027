// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <iterator>

#include "crosshatch/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#endif

namespace crosshatch::emulation {
namespace {

// Guard bytes before and after each allocation.
constexpr int64_t kGap = 256;
constexpr int kNoKey = -1;

// Initially no thread has access to memory with the key.
int AllocateKey() {
#if defined(__x86_64__)
  return pkey_alloc(0, PKEY_DISABLE_ACCESS);
#else
  return kNoKey;
#endif
}

bool HasAccess(int key) {
#if defined(__x86_64__)
  if (key != kNoKey) return pkey_get(key) == 0;
#endif
  return true;
}

void SetAccess([[maybe_unused]] int key, [[maybe_unused]] bool access) {
#if defined(__x86_64__)
  if (key != kNoKey) pkey_set(key, access ? 0 : PKEY_DISABLE_ACCESS);
#endif
}

int64_t MappedBytes(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + 2 * kGap + page - 1) / page * page;
}

}  // namespace

DeviceMemory::DeviceMemory(int64_t capacity)
    : capacity_(capacity), key_(AllocateKey()) {}

std::byte* DeviceMemory::Acquire(int64_t bytes) {
  CH_CHECK_GT(bytes, 0);
  std::lock_guard<std::mutex> lock(mutex_);
  if (used_ + bytes > capacity_) return nullptr;
  const auto mapped = static_cast<size_t>(MappedBytes(bytes));
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
#if defined(__x86_64__)
  if (key_ != kNoKey) {
    CH_CHECK_EQ(pkey_mprotect(memory, mapped, PROT_READ | PROT_WRITE, key_), 0);
  }
#endif
  std::byte* const data = static_cast<std::byte*>(memory) + kGap;
  ASAN_POISON_MEMORY_REGION(memory, mapped);
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes));
  allocations_[reinterpret_cast<uintptr_t>(data)] = bytes;
  used_ += bytes;
  return data;
}

bool DeviceMemory::Release(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocations_.find(reinterpret_cast<uintptr_t>(data));
  if (found == allocations_.end()) return false;
  std::byte* const memory = static_cast<std::byte*>(data) - kGap;
  const auto mapped = static_cast<size_t>(MappedBytes(found->second));
  // The process may map this range again, so unpoison it.
  ASAN_UNPOISON_MEMORY_REGION(memory, mapped);
  CH_CHECK_EQ(munmap(memory, mapped), 0);
  used_ -= found->second;
  allocations_.erase(found);
  return true;
}

bool DeviceMemory::Holds(const void* data, int64_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::lock_guard<std::mutex> lock(mutex_);
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return static_cast<int64_t>(address - start) + bytes <= size;
}

MemoryRange DeviceMemory::RangeOf(uintptr_t address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return {};
  const auto& [start, size] = *std::prev(after);
  const MemoryRange range = {start, static_cast<size_t>(size)};
  return range.Holds(address, 0) ? range : MemoryRange{};
}

int64_t DeviceMemory::used() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

bool IsDeviceMemoryProtected() {
  static const bool is_protected = [] {
    const int key = AllocateKey();
#if defined(__x86_64__)
    if (key != kNoKey) pkey_free(key);
#endif
    return key != kNoKey;
  }();
  return is_protected;
}

DeviceAccess::DeviceAccess(const DeviceMemory& device)
    : key_(device.key_), had_it_(HasAccess(device.key_)) {
  SetAccess(key_, true);
}

DeviceAccess::~DeviceAccess() { SetAccess(key_, had_it_); }

}  // namespace crosshatch::emulation
