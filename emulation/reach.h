// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_REACH_H_
#define CROSSHATCH_EMULATION_REACH_H_

/// \file
/// The memory that kernels on the calling thread may access. A device can
/// access neither pageable memory of the process nor memory next to an
/// allocation. Here everything is memory of the process, so each load and store
/// is checked.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace crosshatch::emulation {

/// An allocation, or none if empty.
struct MemoryRange {
  uintptr_t start = 0;
  size_t bytes = 0;

  bool Holds(uintptr_t address, size_t size) const {
    // An address below the start is a large offset.
    const uintptr_t offset = address - start;
    return offset < bytes && size <= bytes - offset;
  }
};

/// Restricts the accesses of kernels during its lifetime. Only one may exist.
/// Without one all accesses are allowed.
class Reach {
 public:
  /// \param find returns the allocation that contains an address, if kernels
  ///     may access it. It outlives this object.
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
  /// Enough for the operands of most kernels.
  std::array<MemoryRange, 8> seen_;
  size_t next_ = 0;
};

extern thread_local constinit Reach* current_reach;

inline bool IsInReach(const void* data, size_t bytes) {
  return current_reach == nullptr || current_reach->Holds(data, bytes);
}

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_REACH_H_
