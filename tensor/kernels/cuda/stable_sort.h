// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_STABLE_SORT_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_STABLE_SORT_H_

/// \file
/// Sorting on the device: CUB's radix sort, or under emulation that of the
/// standard library.

#include <cstdint>

#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// `segments` runs of `length` keys each, sorted separately: equal keys keep
/// their order. A value moves with each key. The four arrays have segments *
/// length elements and do not overlap.
struct StableSortArgs {
  int64_t segments = 0;
  int64_t length = 0;
  /// The low bits of keys that may be nonzero.
  int key_bits = 64;
  const uint64_t* keys = nullptr;
  const int64_t* values = nullptr;
  uint64_t* sorted_keys = nullptr;
  int64_t* sorted_values = nullptr;
  /// StableSortWorkspaceBytes(segments, length) bytes, aligned to 64.
  void* workspace = nullptr;
};

int64_t StableSortWorkspaceBytes(int64_t segments, int64_t length);
void StableSort(const StableSortArgs& args, KernelContext& context);

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_STABLE_SORT_H_
