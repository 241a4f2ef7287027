// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_PARTS_H_
#define CROSSHATCH_TESTING_PARTS_H_

/// \file
/// The sizes of ranks' shares, for tests that count bytes.
/// docs/communication.md and docs/memory.md print the text between the marks.

#include <algorithm>
#include <cstdint>

namespace crosshatch {

// [part]
// How many of n elements part i of k holds.
inline int64_t Part(int64_t n, int64_t k, int64_t i) {
  const int64_t chunk = (n + k - 1) / k;
  return std::min(n, (i + 1) * chunk) - std::min(n, i * chunk);
}
// [/part]

// [all_reduced]
// What rank i of k receives when n elements are all-reduced: the others'
// summands of its piece, then the others' pieces.
inline int64_t AllReduced(int64_t n, int64_t k, int64_t i) {
  const int64_t piece = n * (i + 1) / k - n * i / k;
  return (k - 1) * piece + (n - piece);
}
// [/all_reduced]

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_PARTS_H_
