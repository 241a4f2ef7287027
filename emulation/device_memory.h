// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_DEVICE_MEMORY_H_
#define CROSSHATCH_EMULATION_DEVICE_MEMORY_H_

/// \file
/// Memory of emulated devices. It is memory of the process that a thread may
/// touch only while it does the device's work: the processor's protection keys
/// see to it where there are some, and elsewhere nothing does. Under
/// AddressSanitizer what lies beside an allocation is nobody's.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "crosshatch/emulation/reach.h"

namespace crosshatch::emulation {

inline constexpr int kMaxDevices = 8;

/// The memory of one device.
/// \threadsafety any thread.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t capacity);

  /// Aligned to 256; null where the device has no more. Its content is
  /// undefined.
  std::byte* Acquire(int64_t bytes);
  /// \returns false: Acquire did not give it.
  bool Release(void* data);
  /// Whether the `bytes` bytes from `data` on are of one allocation.
  bool Holds(const void* data, int64_t bytes) const;
  /// The allocation that holds `address`; of no bytes where none does.
  MemoryRange RangeOf(uintptr_t address) const;
  /// Whether `data` is an address in some allocation.
  bool Knows(const void* data) const { return Holds(data, 0); }

  int64_t capacity() const { return capacity_; }
  int64_t used() const;

 private:
  friend class DeviceAccess;

  const int64_t capacity_;
  const int key_;
  mutable std::mutex mutex_;
  std::map<uintptr_t, int64_t> allocations_;
  int64_t used_ = 0;
};

/// Whether the processor keeps the host away from memory of devices.
bool IsDeviceMemoryProtected();

/// Lets the calling thread touch the memory of `device` while it lives, and
/// none of other devices but for those that it is given too.
class DeviceAccess {
 public:
  explicit DeviceAccess(const DeviceMemory& device);
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

 private:
  const int key_;
  const bool had_it_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_DEVICE_MEMORY_H_
