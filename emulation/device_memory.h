// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_DEVICE_MEMORY_H_
#define CROSSHATCH_EMULATION_DEVICE_MEMORY_H_

/// \file
/// Memory of emulated devices. It is memory of the process that a thread may
/// access only while it executes the device's work. Protection keys enforce
/// that on processors that have them. AddressSanitizer also reports accesses
/// next to an allocation.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "crosshatch/emulation/reach.h"

namespace crosshatch::emulation {

inline constexpr int kMaxDevices = 8;

/// The memory of one device.
/// \threadsafety Any thread may call any function.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t capacity);

  /// Returns uninitialized memory, aligned to 256 bytes, or null if the device
  /// has no more.
  std::byte* Acquire(int64_t bytes);
  /// \returns false if `data` is not from Acquire.
  bool Release(void* data);
  /// Returns whether the `bytes` bytes at `data` are in one allocation.
  bool Holds(const void* data, int64_t bytes) const;
  /// Returns the allocation that contains `address`, or an empty range.
  MemoryRange RangeOf(uintptr_t address) const;
  /// Returns whether `data` is an address in some allocation.
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

/// Returns whether the processor prevents host accesses to memory of devices.
bool IsDeviceMemoryProtected();

/// Gives the calling thread access to the memory of `device` during its
/// lifetime. Access to other devices needs objects of its own.
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
