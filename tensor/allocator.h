// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_ALLOCATOR_H_
#define CROSSHATCH_TENSOR_ALLOCATOR_H_

/// \file
/// Memory of one rank: cached, ordered by streams, accounted by class.
///
/// A block is a lease. It belongs to the stream it was allocated on; giving it
/// back makes it available again in the order of that stream, at once. A use
/// on another stream is recorded with Block::UsedOn at the time of issue, and
/// whoever leases the memory next waits for that event on its own stream.
/// Nothing ever asks whether work has finished, so what is reused and what the
/// peaks are is the same in every run.
///
/// Who leases is one thread. What it leased may be given back on any: there it
/// waits for the owner, who takes it at the next lease.
///
/// Bytes are accounted at issue. The accounting allocator of a dry run hands
/// out blocks without memory and accounts them alike.

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

/// What memory is for. Peaks are kept by class.
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

/// Who knows memory by its address, beside those that lease it, such as a
/// library that it is registered with.
class MemoryListener {
 public:
  virtual ~MemoryListener() = default;
  /// The allocation that begins at `data` goes back to the device when this
  /// returns. No work uses it any more. Called by the thread that leases.
  virtual void MemoryGoes(const std::byte* data) = 0;
};

/// A use of memory on another stream than the one it was allocated on: what
/// had been issued to `stream` when it was recorded.
struct MemoryUse {
  Stream* stream;
  Event event;
};
using MemoryUses = absl::InlinedVector<MemoryUse, 1>;

/// A lease of memory; gives it back when destroyed. Movable.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();

  /// Start of the memory, aligned to 64 bytes; null in a dry run and for a
  /// block of no bytes.
  std::byte* data() const { return data_; }
  /// The size asked for.
  int64_t bytes() const { return bytes_; }
  MemoryClass memory_class() const { return memory_class_; }
  bool empty() const { return allocator_ == nullptr; }

  /// Work issued to `stream` so far uses this block: the next lease of the
  /// memory starts after it. Not needed for the block's own stream, nor in
  /// another rank's context, which holds what it uses (RankContext::Hold).
  void UsedOn(Stream& stream);

  /// The allocator that it is a lease of; null if empty.
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

/// Bytes leased now and at most so far, by class and in all.
struct MemoryStats {
  std::array<int64_t, kNumMemoryClasses> current = {};
  std::array<int64_t, kNumMemoryClasses> peak = {};
  int64_t current_total = 0;
  int64_t peak_total = 0;
};

/// Whose an allocator is.
struct AllocatorOwner {
  /// The context's (RankContext::id); 0: nobody's.
  uint64_t context = 0;
  /// "rank 3"; empty for a thread without a rank, whose memory other threads
  /// may use.
  std::string name;
};

/// Leases blocks of one device to one rank.
/// \threadsafety used by its rank's thread only, that of the first lease; but
///     blocks may be given back on any thread.
class Allocator {
 public:
  /// All blocks must have been given back.
  virtual ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  virtual Device device() const = 0;

  /// Where leases and returns are logged, as "allocate" and "release", of host
  /// memory beside a device's as "allocate_host" and "release_host"; null for
  /// nowhere.
  void set_sink(EventSink* sink, bool of_host = false) {
    sink_ = sink;
    of_host_ = of_host;
  }

  /// Leases `bytes` (0 is fine) to work issued to `stream` from now on. The
  /// content is undefined. Where the device has no more, what is free here goes
  /// back to it first, once the work that uses it is done. Running out of
  /// memory ends the process with a message that gives the stats: there is no
  /// way on.
  Block Allocate(int64_t bytes, MemoryClass memory_class, Stream& stream);

  /// Accounts a block that is leased to another class from now on; one that is
  /// empty or of another allocator is left alone.
  void Reclassify(Block& block, MemoryClass memory_class);

  void set_owner(AllocatorOwner owner) { owner_ = std::move(owner); }
  const AllocatorOwner& owner() const { return owner_; }
  /// Whether the calling thread is the one that leases.
  bool OnOwnThread() const;

  /// `listener` hears of all memory that goes while the allocator lives, until
  /// it is removed; when the allocator ends it hears of nothing. Called by the
  /// thread that leases.
  virtual void AddListener(MemoryListener& listener);
  virtual void RemoveListener(MemoryListener& listener);

  /// Takes what other threads have given back.
  void TakeReturned();
  /// Ends `allocator` when the last of its blocks is given back, on whatever
  /// thread that is. Called by the thread that leases, which does so no more.
  static void Retire(std::unique_ptr<Allocator> allocator);

  const MemoryStats& stats() const { return stats_; }
  /// Makes the current bytes the peaks.
  void ResetPeaks();

  /// Memory held, leased or cached.
  virtual int64_t reserved_bytes() const = 0;

 protected:
  Allocator() = default;

  /// Finds memory for block.bytes() > 0, calls SetMemory and makes `stream`
  /// wait for earlier uses.
  virtual void Lease(Block& block, Stream& stream) = 0;
  /// Takes back the memory of a block of block.bytes() > 0.
  virtual void Return(Block& block) = 0;

  /// Ends the process because `bytes` more are not to be had, though
  /// `given_back` bytes of free blocks went back to the device.
  [[noreturn]] void FailOutOfMemory(int64_t bytes, int64_t given_back) const;

  /// Tells the listeners.
  void AnnounceThatMemoryGoes(const std::byte* data) const;

  // What engines may set of a block.
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
  std::vector<Block> returned_;  // Given back by other threads.
};

/// Accounts as the others do and hands out no memory (Device::Meta()).
std::unique_ptr<Allocator> MakeAccountingAllocator();

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_ALLOCATOR_H_
