// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_TRAFFIC_H_
#define CROSSHATCH_EMULATION_TRAFFIC_H_

/// \file
/// Counts the traffic between a device and its memory. Accesses of a warp's
/// lanes by one instruction are one request, which moves each sector of 32
/// bytes once. There is no cache: repeated reads count again.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace crosshatch::emulation {

namespace internal {

/// The index of the accessing thread.
extern thread_local constinit int traffic_thread;

}  // namespace internal

inline constexpr int kSectorBytes = 32;

struct Traffic {
  int64_t load_requests = 0;
  int64_t load_sectors = 0;
  int64_t store_requests = 0;
  int64_t store_sectors = 0;

  int64_t bytes() const {
    return (load_sectors + store_sectors) * kSectorBytes;
  }
};

/// Counts kernels of the process on any thread during its lifetime. Only one
/// may exist (checked).
class TrafficCount {
 public:
  TrafficCount();
  ~TrafficCount();
  TrafficCount(const TrafficCount&) = delete;
  TrafficCount& operator=(const TrafficCount&) = delete;

  /// Returns the traffic of ended blocks.
  Traffic total() const;

 private:
  friend class TrafficBlock;
  mutable std::mutex mutex_;
  Traffic total_;
};

/// Counts the accesses of a block's threads while the block runs. For grid.cc.
class TrafficBlock {
 public:
  TrafficBlock();
  ~TrafficBlock();
  TrafficBlock(const TrafficBlock&) = delete;
  TrafficBlock& operator=(const TrafficBlock&) = delete;

  /// Sets the index of the accessing thread.
  static void SetThread(int number) { internal::traffic_thread = number; }
  /// Records an access by the instruction at `site`.
  void Note(const void* site, const void* address, size_t bytes, bool is_store);

 private:
  struct Access {
    const void* site;
    uintptr_t address;
    uint32_t bytes;
    int thread;
    bool is_store;
  };

  TrafficCount* const count_;
  std::vector<Access> accesses_;
};

namespace internal {

/// Null if nothing is counted.
extern thread_local constinit TrafficBlock* traffic_block;
/// Records an access; its return address identifies the instruction.
void NoteAccess(const void* address, size_t bytes, bool is_store);

}  // namespace internal

/// Called for each load and store of global memory.
inline __attribute__((always_inline)) void NoteLoad(const void* address,
                                                    size_t bytes) {
  if (internal::traffic_block != nullptr) [[unlikely]] {
    internal::NoteAccess(address, bytes, /*is_store=*/false);
  }
}
inline __attribute__((always_inline)) void NoteStore(const void* address,
                                                     size_t bytes) {
  if (internal::traffic_block != nullptr) [[unlikely]] {
    internal::NoteAccess(address, bytes, /*is_store=*/true);
  }
}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_TRAFFIC_H_
