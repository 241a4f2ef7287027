// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_ASYNC_COPY_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_ASYNC_COPY_CUH_

/// \file
/// Copies from global to shared memory that do not pass through registers and
/// do not wait (cp.async). A thread waits for its own copies only: after the
/// wait, a barrier shows them to the other threads of the block.

#include <cstdint>

#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/kernels/cuda/mma.cuh"

namespace crosshatch::internal {

/// Starts to copy the first `bytes` of 16 aligned bytes, and zeros for the
/// rest. Reads nothing if `bytes` is 0.
__device__ __forceinline__ void StartCopy(Eight* to, const void* from,
                                          int bytes) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  emulation::StartCopy(to, from, static_cast<size_t>(bytes));
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes)
               : "memory");
#endif
}

/// Makes a group of the thread's copies since the last call.
__device__ __forceinline__ void CommitCopies() {
#if defined(CROSSHATCH_CUDA_EMULATION)
  emulation::async_copies->Commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits for the thread's groups of copies, but the latest kGroups.
template <int kGroups>
#if defined(CROSSHATCH_CUDA_EMULATION)
void WaitForCopies(const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  emulation::WaitForCopies(kGroups, {file, line});
}
#else
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
#endif

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_ASYNC_COPY_CUH_
