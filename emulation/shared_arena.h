// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_SHARED_ARENA_H_
#define CROSSHATCH_EMULATION_SHARED_ARENA_H_

#include <cstddef>
#include <cstring>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/grid.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(address)
#endif

namespace crosshatch::emulation {

/// The shared memory of a block, reused by one thread of the process.
class SharedArena {
 public:
  /// Bytes after each array that no thread may access.
  static constexpr size_t kGap = 64;
  static constexpr size_t kBytes = kMaxOptInSharedBytes + (size_t{16} << 10);

  ~SharedArena() { ASAN_UNPOISON_MEMORY_REGION(bytes_, kBytes); }

  void Begin() {
    ASAN_UNPOISON_MEMORY_REGION(bytes_, used_);
    std::memset(bytes_, 0xFF, used_);
    ASAN_POISON_MEMORY_REGION(bytes_, kBytes);
    arrays_.clear();
    used_ = 0;
    asked_for_ = 0;
    static_ = 0;
  }

  /// Returns the array for `tag`. A null tag is the launch's dynamic memory.
  void* Find(const void* tag, size_t bytes, size_t alignment) {
    for (const Array& array : arrays_) {
      if (array.tag == tag) return array.data;
    }
    asked_for_ += bytes;
    if (tag != nullptr) static_ += bytes;
    CH_CHECK(static_ <= kMaxSharedBytes && asked_for_ <= kMaxOptInSharedBytes)
        << WhereInGrid() << ": a block has no more shared memory";
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    CH_CHECK_LE(start + bytes, kBytes) << WhereInGrid();
    ASAN_UNPOISON_MEMORY_REGION(bytes_ + start, bytes);
    if (start + bytes > dirty_) {
      std::memset(bytes_ + start, 0xFF, bytes);
      dirty_ = start + bytes;
    }
    used_ = start + bytes + kGap;
    arrays_.push_back({tag, bytes_ + start});
    return bytes_ + start;
  }

 private:
  struct Array {
    const void* tag;
    void* data;
  };
  alignas(128) std::byte bytes_[kBytes];
  std::vector<Array> arrays_;
  size_t used_ = 0;
  size_t asked_for_ = 0;
  size_t static_ = 0;  // Of that, in arrays of a size known to the compiler.
  size_t dirty_ = 0;   // Memory from here on has not been set to ones yet.
};

}  // namespace crosshatch::emulation

#endif  // CROSSHATCH_EMULATION_SHARED_ARENA_H_
