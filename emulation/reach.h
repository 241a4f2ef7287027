// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_REACH_H_
#define CROSSHATCH_EMULATION_REACH_H_

/// \file
/// Reach: which memory the kernels of the calling thread may touch. A device
/// has no access to memory of the process that is not pinned, nor to what lies
/// beside an allocation; here all of it is the process's, and so each load and
/// store asks.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace crosshatch::emulation {

/// An allocation; of no bytes: none.
struct MemoryRange {
  uintptr_t start = 0;
  size_t bytes = 0;

  bool Holds(uintptr_t address, size_t size) const {
    // An address below the start is a large offset.
    const uintptr_t offset = address - start;
    return offset < bytes && size <= bytes - offset;
  }
};

/// Bounds what kernels touch while it lives; one at a time. Where there is none
/// they may touch everything.
class Reach {
 public:
  /// \param find gives the allocation that holds an address, if the kernels may
  ///     touch it; outlives this.
  explicit Reach(absl::FunctionRef<MemoryRange(uintptr_t)> find);
  ~Reach();
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  bool Holds(const void* data, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return last_.Holds(address, bytes) || Find(address, bytes);
  }

 private:
  bool Find(uintptr_t address, size_t bytes);

  const absl::FunctionRef<MemoryRange(uintptr_t)> find_;
  MemoryRange last_;
  /// As many operands as most kernels have.
  std::array<MemoryRange, 8> seen_;
  size_t next_ = 0;
};

extern thread_local constinit Reach* current_reach;

inline bool IsInReach(const void* data, size_t bytes) {
  return current_reach == nullptr || current_reach->Holds(data, bytes);
}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_REACH_H_
