// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_CONTEXT_H_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_CONTEXT_H_

/// \file
/// What the kernels of CUDA use beside their args.

#include <cstdint>
#include <memory>

#include "crosshatch/tensor/kernels/cuda/complaint.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch::internal {

/// Bytes of a stream's scratch memory.
inline constexpr int64_t kScratchBytes = int64_t{1} << 20;

/// The context of a stream of CUDA: what its tasks get. Kernels that are issued
/// to one stream run one after another, and so share the scratch memory.
struct CudaKernelContext : KernelContext {
  /// A cudaStream_t.
  void* stream = nullptr;
  /// kScratchBytes bytes of the device, aligned to 256. Partial results of one
  /// kernel for the next one of the same op.
  void* scratch = nullptr;
  /// CudaOptions::tf32 of the device.
  bool tf32 = false;
  /// In pinned memory of the host: what a kernel found wrong.
  Complaint* complaint = nullptr;
  /// Of what the kernels that write there were issued for; null: unknown.
  std::shared_ptr<ComplainerPlaces> places;
};

/// Contexts of all streams of CUDA are of this type.
inline CudaKernelContext& CudaContextOf(KernelContext& context) {
  return static_cast<CudaKernelContext&>(context);
}

/// What a kernel that is issued now hands on to the complaint that it may have.
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
