// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {

// A function of the sizes alone, so that a dry run, which has no device to
// query, accounts for the same bytes as every device. CUB needs no more on any
// device: its radix sort keeps another copy of keys and values, 256 counters of
// 4 bytes for each tile of at least 1,024 elements, and 256 of 8 bytes in each
// of 8 passes for each portion of almost 2^28.
int64_t StableSortWorkspaceBytes(int64_t segments, int64_t length) {
  const int64_t count = segments * length;
  if (count == 0) return 0;
  constexpr int64_t kPortion = int64_t{1} << 27;
  constexpr int64_t kPortionBytes = int64_t{1} << 15;
  return 17 * count + (count / kPortion + 1) * kPortionBytes;
}

}  // namespace crosshatch::internal
