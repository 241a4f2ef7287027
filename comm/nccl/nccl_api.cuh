// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_COMM_NCCL_NCCL_API_CUH_
#define CROSSHATCH_COMM_NCCL_NCCL_API_CUH_

/// \file
/// NCCL's functions: the toolkit's, or the emulation's.

#if defined(CROSSHATCH_CUDA_EMULATION)
#include "crosshatch/emulation/nccl.h"
#else
#include <nccl.h>
#endif

#include <optional>

#include "crosshatch/base/check.h"
#include "crosshatch/base/reduce_op.h"
#include "crosshatch/tensor/dtype.h"

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

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_COMM_NCCL_NCCL_API_CUH_
