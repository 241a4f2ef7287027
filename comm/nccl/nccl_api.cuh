// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_API_CUH_
#define CROSSHATCH_COMM_NCCL_NCCL_API_CUH_

/// \file
/// NCCL's functions: the toolkit's, or the emulation's.

#if defined(CROSSHATCH_CUDA_EMULATION)
#include "crosshatch/emulation/nccl.h"
#else
#include <cuda_runtime.h>
#include <nccl.h>
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1),
              "NCCL 2.19 or later: communicators are split, and memory is "
              "registered");
#endif

#include <cstddef>
#include <cstdint>

#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"

namespace crosshatch::internal {

/// What NCCL adds; a dtype that it has none for is a bug of the caller's.
inline ncclDataType_t NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt16:
    case DType::kBool:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kUInt8:
      break;
  }
  CH_CHECK(false) << "NCCL has no sums of " << Name(dtype);
  return ncclUint8;
}

inline ncclRedOp_t NcclOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
  }
  return ncclSum;
}

/// A whole allocation.
struct NcclMemory {
  uintptr_t start = 0;
  size_t bytes = 0;
};

/// Returns the device allocation of `data`; for host memory, one of no bytes.
inline NcclMemory AllocationOf(const void* data) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  const emulation::MemoryRange range = emulation::AllocationOf(data);
  return {range.start, range.bytes};
#else
  cudaPointerAttributes attributes = {};
  CheckCuda(cudaPointerGetAttributes(&attributes, data),
            "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice) return {};
  // Of the driver, which the runtime has linked, and has no name for.
  using GetRange = int (*)(unsigned long long* start, size_t* bytes,
                           unsigned long long address);
  static const auto get_range = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = {};
    CheckCuda(
        cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function,
                                         12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
    CH_CHECK(found == cudaDriverEntryPointSuccess)
        << "the driver has no cuMemGetAddressRange";
    return reinterpret_cast<GetRange>(function);
  }();
  unsigned long long start = 0;
  NcclMemory memory;
  const int error =
      get_range(&start, &memory.bytes, reinterpret_cast<uintptr_t>(data));
  CH_CHECK(error == 0) << "cuMemGetAddressRange: error " << error;
  memory.start = start;
  return memory;
#endif
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_API_CUH_
