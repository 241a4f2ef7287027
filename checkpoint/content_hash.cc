// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/content_hash.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/check.h"
#include "crosshatch/checkpoint/box_runs.h"
#include "crosshatch/dtensor/layout/box.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch::checkpoint {
namespace {

// The odd number nearest to 2^64 / golden ratio. Its multiples are spread
// evenly, so no two indices in use are mapped to near values.
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

constexpr size_t kHexDigits = 16;

/// Returns 64 bits each of which depends on all bits of `x` (the finalizer of
/// SplitMix64).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

template <typename Bits>
uint64_t HashElements(const std::byte* data, int64_t first, int64_t count) {
  uint64_t sum = 0;
  uint64_t place = (static_cast<uint64_t>(first) + 1) * kStep;
  for (int64_t i = 0; i < count; ++i, place += kStep) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof(Bits)),
                sizeof(Bits));
    sum += Mix(place ^ bits);
  }
  return sum;
}

}  // namespace

uint64_t HashRun(const void* data, int64_t element_bytes, int64_t first,
                 int64_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  switch (element_bytes) {
    case 1:
      return HashElements<uint8_t>(bytes, first, count);
    case 2:
      return HashElements<uint16_t>(bytes, first, count);
    case 4:
      return HashElements<uint32_t>(bytes, first, count);
    default:
      CH_CHECK_EQ(element_bytes, 8) << "no element has that size";
      return HashElements<uint64_t>(bytes, first, count);
  }
}

uint64_t HashBox(const void* data, int64_t element_bytes, ShapeView sizes,
                 const Box& box) {
  const auto* next = static_cast<const std::byte*>(data);
  uint64_t sum = 0;
  ForEachRun(sizes, box, [&](int64_t first, int64_t count) {
    sum += HashRun(next, element_bytes, first, count);
    next += count * element_bytes;
  });
  return sum;
}

uint64_t HashText(absl::string_view text) {
  // The length distinguishes texts that differ in trailing zeros.
  return Mix(HashRun(text.data(), 1, 0, static_cast<int64_t>(text.size())) +
             text.size());
}

std::string HashToHex(uint64_t hash) { return absl::StrFormat("%016x", hash); }

bool HashFromHex(absl::string_view text, uint64_t& hash) {
  if (text.size() != kHexDigits) return false;
  uint64_t value = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return false;
    value =
        value * 16 + static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  hash = value;
  return true;
}

std::string HashesToHex(absl::Span<const uint64_t> hashes) {
  std::string text;
  for (const uint64_t hash : hashes) text += HashToHex(hash);
  return text;
}

bool HashesFromHex(absl::string_view text, std::vector<uint64_t>& hashes) {
  hashes.clear();
  for (size_t at = 0; at < text.size(); at += kHexDigits) {
    uint64_t& hash = hashes.emplace_back();
    if (!HashFromHex(text.substr(at, kHexDigits), hash)) return false;
  }
  return true;
}

}  // namespace crosshatch::checkpoint
