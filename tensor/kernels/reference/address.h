// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_REFERENCE_ADDRESS_H_
#define CROSSHATCH_TENSOR_KERNELS_REFERENCE_ADDRESS_H_

/// \file
/// Addresses of the reference device: those of the process with a bit set that
/// none of its own has. Who follows one without a kernel crashes at once, as
/// with the address of a GPU.

#include <cstdint>

namespace crosshatch::reference {

inline constexpr uintptr_t kDeviceBit = uintptr_t{1} << 62;

/// What the device calls `address` of the process.
template <typename T>
T* DeviceAddress(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) |
                              kDeviceBit);
}

/// What the process calls `address`, of the device or its own.
template <typename T>
T* HostAddress(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(address) &
                              ~kDeviceBit);
}

}  // namespace crosshatch::reference

#endif  // CROSSHATCH_TENSOR_KERNELS_REFERENCE_ADDRESS_H_
