// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/byte_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace crosshatch {

uint64_t HashBytes(uint64_t hash, const void* bytes, int64_t count) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  const auto* next = static_cast<const char*>(bytes);
  while (count > 0) {
    uint64_t word = 0;
    const int64_t size = std::min<int64_t>(count, sizeof(word));
    std::memcpy(&word, next, static_cast<size_t>(size));
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 29;
    next += size;
    count -= size;
  }
  return hash;
}

}  // namespace crosshatch
