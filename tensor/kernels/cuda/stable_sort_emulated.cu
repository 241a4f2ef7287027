// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/stable_sort.h"

namespace crosshatch::internal {
namespace {

// A block of one thread sorts a segment.
__global__ void SortSegment(StableSortArgs args) {
  if (threadIdx.x != 0) return;
  const int64_t first = int64_t{blockIdx.x} * args.length;
  std::vector<int64_t> order(static_cast<size_t>(args.length));
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return args.keys[a] < args.keys[b];
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
  LaunchKernel("stable_sort", &SortSegment, {args.segments}, context, args);
}

}  // namespace crosshatch::internal
