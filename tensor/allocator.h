// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ALLOCATOR_H_
#define CROSSHATCH_TENSOR_ALLOCATOR_H_

/// \file
/// Allocator: the memory of one rank, cached, ordered by streams and accounted
/// by class.
///
/// A block is a lease. It belongs to the stream it was allocated on; freeing it
/// makes it available again in the order of that stream, immediately. A use on
/// another stream is recorded with Block::UsedOn when it is issued, and the
/// next lease of the memory waits for that event on its stream. The allocator
/// never checks whether work has finished, so reuse and peaks are the same in
/// every run.
///
/// One thread leases. Blocks may be freed on any thread; the owner takes them
/// back at its next lease.
///
/// Bytes are accounted at issue. The accounting allocator of a dry run returns
/// blocks without memory and accounts them in the same way.
///
/// Every device with memory uses the caching allocator. Devices differ in where
/// memory comes from (MemorySource); blocks are reused in the same way on all
/// of them.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// What memory is used for. Peaks are kept by class.
enum class MemoryClass : uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kActivation,
  kGatheredParameter,
  kCommunication,
};
inline constexpr int kNumMemoryClasses = 6;

/// "parameter", "gradient", "optimizer_state", "activation",
/// "gathered_parameter", "communication".
const char* Name(MemoryClass memory_class);

class Allocator;

/// Is notified when memory is freed, e.g. for a library that the memory is
/// registered with.
class MemoryListener {
 public:
  virtual ~MemoryListener() = default;
  /// Called before the allocation at `data` is returned to the device. No work
  /// uses it any more. Called by the thread that leases.
  virtual void MemoryGoes(const std::byte* data) = 0;
};

/// A use of memory on another stream than the one it was allocated on, by the
/// work issued to `stream` up to `event`.
struct MemoryUse {
  Stream* stream;
  Event event;
};
using MemoryUses = absl::InlinedVector<MemoryUse, 1>;

/// A lease of memory, which ends when it is destroyed. Movable.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();

  /// Returns the start of the memory, aligned to 64 bytes; null in a dry run
  /// and without bytes.
  std::byte* data() const { return data_; }
  /// Returns the requested size.
  int64_t bytes() const { return bytes_; }
  MemoryClass memory_class() const { return memory_class_; }
  bool empty() const { return allocator_ == nullptr; }

  /// Records that work issued to `stream` so far uses this block: the next
  /// lease of the memory starts after it. Not needed for the block's own
  /// stream, nor in another rank's context, which uses RankContext::Hold.
  void UsedOn(Stream& stream);

  /// Returns the allocator of the lease; null if empty.
  const Allocator* allocator() const { return allocator_; }

 private:
  friend class Allocator;

  Allocator* allocator_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t capacity_ = 0;
  MemoryClass memory_class_ = MemoryClass::kActivation;
  Stream* home_ = nullptr;
  MemoryUses uses_;  // The latest of each stream.
};

/// Bytes leased, current and peak, by class and in total.
struct MemoryStats {
  std::array<int64_t, kNumMemoryClasses> current = {};
  std::array<int64_t, kNumMemoryClasses> peak = {};
  int64_t current_total = 0;
  int64_t peak_total = 0;
};

/// The owner of an allocator.
struct AllocatorOwner {
  /// The id of the context (RankContext::id); 0: none.
  uint64_t context = 0;
  /// "rank 3"; empty for a thread without a rank, whose memory other threads
  /// may use.
  std::string name;
};

/// Leases blocks of one device to one rank.
/// \threadsafety The rank's thread only, which is the thread of the first
///     lease. Blocks may be freed on any thread.
class Allocator {
 public:
  /// \pre All blocks have been freed.
  virtual ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  virtual Device device() const = 0;

  /// Sets the sink for leases and releases (may be null): "allocate" and
  /// "release", or "allocate_host" and "release_host" for host memory of a
  /// device.
  void set_sink(EventSink* sink, bool of_host = false) {
    sink_ = sink;
    of_host_ = of_host;
  }

  /// Leases `bytes` (0 is allowed) to work issued to `stream` from now on. The
  /// content is undefined. If the device has no memory left, free blocks are
  /// returned to it first, after the work that uses them. If memory still does
  /// not suffice, the process ends with a message that has the statistics.
  Block Allocate(int64_t bytes, MemoryClass memory_class, Stream& stream);

  /// Moves a leased block to another class. Ignores blocks that are empty or of
  /// another allocator.
  void Reclassify(Block& block, MemoryClass memory_class);

  void set_owner(AllocatorOwner owner) { owner_ = std::move(owner); }
  const AllocatorOwner& owner() const { return owner_; }
  /// Returns whether the calling thread is the one that leases.
  bool OnOwnThread() const;

  /// Adds or removes a listener. Listeners are notified of all memory that is
  /// returned to the device, except when the allocator is destroyed. Called by
  /// the thread that leases.
  virtual void AddListener(MemoryListener& listener);
  virtual void RemoveListener(MemoryListener& listener);

  /// Takes back blocks that other threads have freed.
  void TakeReturned();
  /// Destroys `allocator` when the last of its blocks is freed, on any thread.
  /// Called by the thread that leases, which leases no more.
  static void Retire(std::unique_ptr<Allocator> allocator);

  /// Returns free blocks to the device, after the work that uses them.
  /// \returns the bytes.
  virtual int64_t ReleaseFreeMemory() { return 0; }

  const MemoryStats& stats() const { return stats_; }
  /// Sets the peaks to the current bytes.
  void ResetPeaks();

  /// Returns the bytes held, leased or cached.
  virtual int64_t reserved_bytes() const = 0;

 protected:
  Allocator() = default;

  /// Finds memory for block.bytes() > 0, calls SetMemory and makes `stream`
  /// wait for earlier uses.
  virtual void Lease(Block& block, Stream& stream) = 0;
  /// Takes back the memory of a block of block.bytes() > 0.
  virtual void Return(Block& block) = 0;

  /// Ends the process because `bytes` more are not available, after
  /// `given_back` bytes of free blocks were returned to the device.
  [[noreturn]] void FailOutOfMemory(int64_t bytes, int64_t given_back) const;

  /// Notifies the listeners.
  void AnnounceThatMemoryGoes(const std::byte* data) const;

  // Access to a block for implementations.
  static void SetMemory(Block& block, std::byte* data, int64_t capacity) {
    block.data_ = data;
    block.capacity_ = capacity;
  }
  static int64_t capacity(const Block& block) { return block.capacity_; }
  static Stream* home(const Block& block) { return block.home_; }
  static MemoryUses& uses(Block& block) { return block.uses_; }

 private:
  friend class Block;
  void Release(Block& block);
  void ReleaseHere(Block& block);
  void ReleaseElsewhere(Block& block);
  void Log(EventKind kind, const Block& block) const;

  MemoryStats stats_;
  int64_t leases_ = 0;
  EventSink* sink_ = nullptr;
  bool of_host_ = false;
  AllocatorOwner owner_;
  std::vector<MemoryListener*> listeners_;

  // The number of the thread that leases; 0 before the first lease.
  std::atomic<uint64_t> thread_{0};
  // Set by that thread, under the mutex; then every release takes the mutex.
  bool retired_ = false;
  // Whether there is anything in returned_.
  std::atomic<bool> has_returned_{false};
  std::mutex mutex_;
  std::vector<Block> returned_;  // Freed by other threads.
};

/// Returns an allocator that accounts like the others and has no memory
/// (Device::Meta()).
std::unique_ptr<Allocator> MakeAccountingAllocator();

/// The source of a caching allocator's memory. The allocator returns free
/// memory if the device has none left, and all memory when it is destroyed.
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

#endif  // CROSSHATCH_TENSOR_ALLOCATOR_H_
