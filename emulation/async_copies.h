// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_ASYNC_COPIES_H_
#define CROSSHATCH_EMULATION_ASYNC_COPIES_H_

/// \file
/// Asynchronous copies of a kernel's thread from global to shared memory
/// (cp.async). A device may write the destination at any time between the copy
/// and the wait for it. The emulation does the worst at both ends: the copy
/// sets all bits of the destination at once, and the wait stores the data. A
/// missing wait, or a missing barrier before the copy, thus changes results.

#include <array>
#include <cstddef>
#include <vector>

namespace crosshatch::emulation {

class AsyncCopies {
 public:
  static constexpr size_t kBytes = 16;
  using Data = std::array<std::byte, kBytes>;

  /// Starts a copy of `data`, as of now, to `to`.
  void Start(void* to, const Data& data);
  /// Makes a group of the copies since the last call, which may be none.
  void Commit();
  /// Waits for all groups but the latest `groups`.
  void Wait(size_t groups);
  /// Removes and does not execute copies that were not waited for.
  /// \returns whether there were any
  bool Drop();

 private:
  struct Copy {
    void* to;
    Data data;
  };
  std::vector<Copy> copies_;
  // The numbers of copies up to the end of each group that is not waited for.
  std::vector<size_t> ends_;
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_ASYNC_COPIES_H_
