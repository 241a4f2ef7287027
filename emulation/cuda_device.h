// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_CUDA_DEVICE_H_
#define CROSSHATCH_EMULATION_CUDA_DEVICE_H_

/// \file
/// Replaces <cuda_runtime.h> when the host's compiler compiles CUDA kernels:
/// the language of the device, under CUDA's names. What is not here is not
/// emulated and does not compile. CH_SHARED replaces __shared__, on a device
/// too.

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "crosshatch/emulation/async_copies.h"
#include "crosshatch/emulation/grid.h"
#include "crosshatch/emulation/kernel_probe.h"
#include "crosshatch/emulation/reach.h"
#include "crosshatch/emulation/traffic.h"

// A symbol of its own names a kernel (KernelPath).
#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx ::crosshatch::emulation::thread_index
#define blockIdx ::crosshatch::emulation::block_index
#define blockDim ::crosshatch::emulation::block_size
#define gridDim ::crosshatch::emulation::grid_size

/// CH_SHARED(name, type) declares `name` of `type`, shared by the block's
/// threads.
#define CH_SHARED(name, ...)                                           \
  static constexpr char name##_of_block = 0;                           \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>(       \
      ::crosshatch::emulation::SharedMemory(                           \
          &name##_of_block, sizeof(std::type_identity_t<__VA_ARGS__>), \
          alignof(std::type_identity_t<__VA_ARGS__>)))

/// The same for the launch's dynamic_shared_bytes.
#define CH_DYNAMIC_SHARED(name, ...)                             \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>( \
      ::crosshatch::emulation::DynamicSharedMemory())

namespace crosshatch {

using dim3 = emulation::Dim3;

namespace emulation {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

template <typename T>
uint64_t Bits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

__forceinline__ void CheckAccess(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) [[unlikely]] {
    FailMisaligned(address, bytes);
  }
  if (!IsInReach(address, bytes)) [[unlikely]]
    FailOutOfReach(address, bytes);
}

/// \name Global memory
/// Each call is one instruction of a thread: it accesses 1, 2, 4, 8 or 16 bytes
/// at an aligned address in memory of the device (checked, as on a device).
/// @{

/// Flips a bit of the last element, of 1, 2, 4 or 8 bytes: a high one of a
/// floating-point number's mantissa.
template <typename T>
T WithWrongBit(T value) {
  auto* const bytes = reinterpret_cast<unsigned char*>(&value);
  if constexpr (sizeof(T) == 1) {
    bytes[0] ^= 1;
  } else {
    bytes[sizeof(T) - 2] ^= 0x40;
  }
  return value;
}

template <typename T>
__forceinline__ T LoadValue(const void* address) {
  CheckAccess(address, sizeof(T));
  if (has_accessed_memory != nullptr) *has_accessed_memory = true;
  NoteLoad(address, sizeof(T));
  T value;
  std::memcpy(&value, address, sizeof(T));
  const KernelFault::Kind fault = FaultOfAccess(/*is_store=*/false, sizeof(T));
  if (fault != KernelFault::Kind::kNone) [[unlikely]] {
    return fault == KernelFault::Kind::kNoLoad ? T{} : WithWrongBit(value);
  }
  return value;
}

/// Stores at the next address, which is the fault of
/// KernelFault::kOneStoreMore.
template <typename T>
void StoreBehind(void* address, const T& value) {
  void* const next = static_cast<std::byte*>(address) + sizeof(T);
  CheckAccess(next, sizeof(T));
  std::memcpy(next, &value, sizeof(T));
}

template <typename T>
__forceinline__ void StoreValue(void* address, const T& value) {
  CheckAccess(address, sizeof(T));
  if (has_accessed_memory != nullptr) *has_accessed_memory = true;
  NoteStore(address, sizeof(T));
  const KernelFault::Kind fault = FaultOfAccess(/*is_store=*/true, sizeof(T));
  if (fault == KernelFault::Kind::kNoStore) [[unlikely]]
    return;
  if (fault == KernelFault::Kind::kWrongBits) [[unlikely]] {
    const T wrong = WithWrongBit(value);
    std::memcpy(address, &wrong, sizeof(T));
    return;
  }
  std::memcpy(address, &value, sizeof(T));
  if (fault == KernelFault::Kind::kOneStoreMore) [[unlikely]] {
    StoreBehind(address, value);
  }
}

/// @}

/// Copies `bytes` of the 16 bytes at `from`, which may be 0, to `to` in shared
/// memory, followed by zeros: cp.async of 16 bytes.
inline void StartCopy(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % AsyncCopies::kBytes != 0) {
    FailMisaligned(to, AsyncCopies::kBytes);
  }
  AsyncCopies::Data data = {};
  if (bytes > 0) {
    if (reinterpret_cast<uintptr_t>(from) % data.size() != 0) {
      FailMisaligned(from, data.size());
    }
    if (!IsInReach(from, bytes)) FailOutOfReach(from, bytes);
    *has_accessed_memory = true;
    NoteLoad(from, bytes);
    const auto fault = FaultOfAccess(/*is_store=*/false, data.size());
    if (fault != KernelFault::Kind::kNoLoad) {
      std::memcpy(data.data(), from, bytes);
    }
    if (fault == KernelFault::Kind::kWrongBits) data = WithWrongBit(data);
  }
  async_copies->Start(to, data);
}

template <typename T>
T Shuffled(unsigned mask, T value, int from, Place place) {
  const uint64_t bits =
      WarpExchange(WarpOp::kShuffle, mask, Bits(value), from, place);
  T result;
  std::memcpy(&result, &bits, sizeof(T));
  return result;
}

}  // namespace emulation

/// \name Barriers, shuffles and votes
/// The last two parameters are for messages.
/// @{

inline void __syncthreads(const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  emulation::SyncThreads({file, line});
}

inline void __syncwarp(unsigned mask = emulation::kAllLanes,
                       const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emulation::WarpExchange(emulation::WarpOp::kSync, mask, 0, 0, {file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const int first = emulation::Lane() & ~(width - 1);
  return emulation::Shuffled(mask, value, first + (from & (width - 1)),
                             {file, line});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int flipped, int width = 32,
                  const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const int lane = emulation::Lane();
  const int from = lane ^ flipped;
  // A lane cannot read from a later part of the warp.
  const bool taken = from < (lane & ~(width - 1)) + width;
  return emulation::Shuffled(mask, value, taken ? from : lane, {file, line});
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const int lane = emulation::Lane();
  const int from = lane + static_cast<int>(by);
  const bool taken = from < (lane & ~(width - 1)) + width;
  return emulation::Shuffled(mask, value, taken ? from : lane, {file, line});
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const int lane = emulation::Lane();
  const int from = lane - static_cast<int>(by);
  const bool taken = from >= (lane & ~(width - 1));
  return emulation::Shuffled(mask, value, taken ? from : lane, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      emulation::WarpExchange(emulation::WarpOp::kBallot, mask,
                              predicate != 0 ? 1 : 0, 0, {file, line}));
}

inline int __any_sync(unsigned mask, int predicate,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) != 0 ? 1 : 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) == mask ? 1 : 0;
}

/// @}

inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

/// \name Atomic operations
/// Atomic also between kernels on several streams. They return the old value.
/// @{

template <typename T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value,
                                                std::memory_order_relaxed);
}

template <typename T>
T atomicExch(T* address, T value) {
  return std::atomic_ref<T>(*address).exchange(value,
                                               std::memory_order_relaxed);
}

template <typename T>
T atomicCAS(T* address, T expected, T value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(
      expected, value, std::memory_order_relaxed);
  return expected;
}

template <typename T>
T atomicMax(T* address, T value) {
  const std::atomic_ref<T> at(*address);
  T old = at.load(std::memory_order_relaxed);
  while (old < value && !at.compare_exchange_weak(old, value)) {
  }
  return old;
}

template <typename T>
T atomicMin(T* address, T value) {
  const std::atomic_ref<T> at(*address);
  T old = at.load(std::memory_order_relaxed);
  while (value < old && !at.compare_exchange_weak(old, value)) {
  }
  return old;
}

/// @}

/// \name Bits
/// @{
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) {
  return std::countl_zero(static_cast<unsigned>(value));
}
inline int __ffs(int value) {
  return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1;
}
/// @}

}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_CUDA_DEVICE_H_
