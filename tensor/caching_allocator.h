// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_
#define CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_

/// \file
/// The allocator of every device with memory. What devices differ in is where
/// memory comes from; when a block is used again is the same on all of them.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// Memory of a device. An allocator takes ever more of it; it gives back what
/// is free when there is no more, and all when it goes.
/// \threadsafety that of the allocator.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// `bytes` > 0 more, aligned to 64; null where there are none.
  virtual std::byte* Acquire(int64_t bytes) = 0;
  /// Takes back what Acquire gave. No work uses it any more.
  virtual void Release(std::byte* data) = 0;
  /// Sets all bits of `bytes` bytes, in work on a stream with this context.
  virtual void SetAllBits(std::byte* data, int64_t bytes,
                          KernelContext& context) = 0;
};

/// Caches blocks of `source` by stream and size. Where the source has no more,
/// the host waits for the streams whose free blocks there are, and for the uses
/// of these on others; all free blocks go back, of whatever size and stream,
/// and the source is asked once more. It is asked before that only: a block is
/// used again by what was issued alone, as long as there is memory.
/// \param adversarial fills what it leases with ones (NaN in every float
///     type), in the order of its stream, so that a use before the first write
///     or after the return shows.
std::unique_ptr<Allocator> MakeCachingAllocator(
    Device device, std::unique_ptr<MemorySource> source,
    bool adversarial = false);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CACHING_ALLOCATOR_H_
