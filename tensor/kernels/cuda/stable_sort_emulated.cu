// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {
namespace {

/// Returns the bytes that CUB's radix sort uses of its workspace: a copy of the
/// keys and values, counters of each tile, and those of 8 passes.
int64_t UsedWorkspaceBytes(int64_t count) {
  constexpr int64_t kTile = 1024;
  constexpr int64_t kDigits = 256;
  const int64_t tiles = (count + kTile - 1) / kTile;
  return 16 * count + 4 * kDigits * tiles + 8 * 8 * kDigits;
}

// A block of one thread sorts a segment. As a radix sort, it reads only the low
// key_bits bits of keys.
__global__ void SortSegment(StableSortArgs args) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    std::memset(
        args.workspace, 0xA5,
        static_cast<size_t>(UsedWorkspaceBytes(args.segments * args.length)));
  }
  const uint64_t mask = ~uint64_t{0} >> (64 - args.key_bits);
  const int64_t first = int64_t{blockIdx.x} * args.length;
  std::vector<int64_t> order(static_cast<size_t>(args.length));
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return (args.keys[a] & mask) < (args.keys[b] & mask);
  });
  for (int64_t i = 0; i < args.length; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    args.sorted_keys[first + i] = args.keys[from];
    args.sorted_values[first + i] = args.values[from];
  }
}

}  // namespace

void StableSort(const StableSortArgs& args, KernelContext& context) {
  if (args.length == 0) return;
  CH_CHECK(args.workspace != nullptr &&
           reinterpret_cast<uintptr_t>(args.workspace) % 64 == 0)
      << "stable_sort: a workspace at " << args.workspace;
  CH_CHECK(args.key_bits >= 1 && args.key_bits <= 64)
      << "stable_sort: " << args.key_bits << " bits";
  LaunchKernel("stable_sort", &SortSegment, {args.segments}, context, args);
}

}  // namespace crosshatch::internal
