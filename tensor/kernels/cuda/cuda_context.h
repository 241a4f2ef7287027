// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_CONTEXT_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_CONTEXT_H_

/// \file
/// The context of CUDA kernels.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "crosshatch/tensor/kernels/cuda/complaint.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Bytes of a stream's scratch memory.
inline constexpr int64_t kScratchBytes = int64_t{1} << 20;

/// The context of a CUDA stream, which its tasks receive. Kernels of one stream
/// run one after another and share the scratch memory.
/// Captured kernels, in the order in which they are issued.
struct KernelNodes {
  CapturedKernels* captured = nullptr;
  /// A cudaGraphExec_t, whose kernels are replaced; null: the kernels are
  /// captured.
  void* exec = nullptr;
  size_t next = 0;
};

struct CudaKernelContext : KernelContext {
  /// Null: kernels are issued.
  KernelNodes* nodes = nullptr;
  /// A cudaStream_t.
  void* stream = nullptr;
  /// kScratchBytes bytes of device memory, aligned to 256, for partial results
  /// of one kernel for the next one of the same op.
  void* scratch = nullptr;
  /// CudaOptions::tf32 of the device.
  bool tf32 = false;
  /// In pinned host memory: the complaint of a kernel.
  Complaint* complaint = nullptr;
  /// The error contexts of the kernels that may complain; null: unknown.
  std::shared_ptr<ComplainerPlaces> places;
};

/// Returns the context as that of CUDA, the type of all contexts of CUDA
/// streams.
inline CudaKernelContext& CudaContextOf(KernelContext& context) {
  return static_cast<CudaKernelContext&>(context);
}

/// Returns the parameter for a kernel that is issued now and may complain.
inline Complainer ComplainerOf(KernelContext& context, ComplaintKind kind,
                               const char* op = nullptr,
                               const char* name = nullptr,
                               const char* plural = nullptr) {
  const CudaKernelContext& of = CudaContextOf(context);
  return {of.complaint, kind,
          op,           name,
          plural,       of.places == nullptr ? 0 : of.places->NoteHere()};
}

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_CONTEXT_H_
