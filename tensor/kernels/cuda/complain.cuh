// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAIN_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAIN_CUH_

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/complaint.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

/// Records a complaint, unless another thread was first.
__device__ inline void Complain(const Complainer& by, int64_t first,
                                int64_t second, int64_t third) {
  Complaint* const to = by.complaint;
  if (atomicCAS(&to->taken, 0, 1) != 0) return;
  to->op = by.op;
  to->name = by.name;
  to->plural = by.plural;
  to->issue = by.issue;
  to->values[0] = first;
  to->values[1] = second;
  to->values[2] = third;
  __threadfence();
  to->kind = by.kind;
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_COMPLAIN_CUH_
