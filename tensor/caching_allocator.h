// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_
#define CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_

/// \file
/// The caching allocator, used by every device with memory. Devices differ in
/// where memory comes from; reuse of blocks is the same on all of them.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// The memory of a device. An allocator returns free memory when the device has
/// none left, and all memory when it is destroyed.
/// \threadsafety That of the allocator.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Returns `bytes` > 0 of memory, aligned to 64; null if there is none left.
  virtual std::byte* Acquire(int64_t bytes) = 0;
  /// Takes back memory from Acquire. No work uses it any more.
  virtual void Release(std::byte* data) = 0;
  /// Sets all bits of `bytes` bytes. Called within work on a stream.
  virtual void SetAllBits(std::byte* data, int64_t bytes,
                          KernelContext& context) = 0;
};

/// Returns an allocator that caches blocks of `source` by stream and size. If
/// the source has no memory left, the host waits for the work that uses free
/// blocks, all free blocks are returned to the source, and the request is
/// repeated once. As long as there is memory, reuse depends only on what was
/// issued.
/// \param adversarial fills leased memory with ones (NaN in every float type),
///     in the order of its stream, to expose uses before the first write or
///     after the lease has ended.
std::unique_ptr<Allocator> MakeCachingAllocator(
    Device device, std::unique_ptr<MemorySource> source,
    bool adversarial = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_
