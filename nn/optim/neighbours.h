// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_OPTIM_NEIGHBOURS_H_
#define CROSSHATCH_NN_OPTIM_NEIGHBOURS_H_

/// \file
/// Parameters, gradients and optimizer state often lie side by side in one
/// storage (a group of FSDP keeps its shards so). What treats all elements
/// alike then runs once over the neighbours.

#include <cstdint>

#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// Whether `next` starts `count` elements after `first` does, in the same
/// storage and of the same dtype. Both are local and contiguous.
inline bool FollowsAfter(const Tensor& first, int64_t count,
                         const Tensor& next) {
  return first.storage() == next.storage() && first.dtype() == next.dtype() &&
         first.storage_offset() + count == next.storage_offset();
}

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_OPTIM_NEIGHBOURS_H_
