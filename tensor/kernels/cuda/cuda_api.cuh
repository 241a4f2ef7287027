// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_API_CUH_
#define CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_API_CUH_

/// \file
/// The CUDA API for kernel sources: that of the toolkit, or that of the
/// emulation, which needs neither a toolkit nor a device. Differences between
/// the two are here:
///
/// - CH_SHARED(name, type) declares memory shared by the threads of a block,
/// and
///   CH_DYNAMIC_SHARED the launch's LaunchGeometry::shared_bytes of it;
/// - LoadGlobal and StoreGlobal are the only access to global memory, so that
///   the emulation counts the bytes;
/// - LaunchKernel replaces <<<>>>.

#if defined(CROSSHATCH_CUDA_EMULATION)
#include "crosshatch/emulation/cuda_device.h"
#include "crosshatch/emulation/cuda_runtime.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstdint>
#include <type_traits>

#include "crosshatch/base/check.h"
#include "crosshatch/tensor/kernels/cuda/cuda_context.h"
#include "crosshatch/tensor/kernels/cuda/launch_geometry.h"

#if !defined(CROSSHATCH_CUDA_EMULATION)
#define CH_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#define CH_DYNAMIC_SHARED(name, ...)                                 \
  extern __shared__ __align__(16) unsigned char ch_dynamic_shared[]; \
  auto& name =                                                       \
      *reinterpret_cast<std::type_identity_t<__VA_ARGS__>*>(ch_dynamic_shared)
#endif

namespace crosshatch::internal {

/// \name Global memory
/// A value of 1, 2, 4, 8 or 16 bytes by one instruction, at a multiple of its
/// size.
/// @{

template <typename T>
__device__ __forceinline__ T LoadGlobal(const void* address) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  return emulation::LoadValue<T>(address);
#else
  return *static_cast<const T*>(address);
#endif
}

template <typename T>
__device__ __forceinline__ void StoreGlobal(void* address, const T& value) {
#if defined(CROSSHATCH_CUDA_EMULATION)
  emulation::StoreValue(address, value);
#else
  *static_cast<T*>(address) = value;
#endif
}

/// @}

/// Checks the result of a runtime call; `what` names the call.
inline void CheckCuda(cudaError_t error, const char* what) {
  CH_CHECK(error == cudaSuccess) << what << ": " << cudaGetErrorName(error)
                                 << " (" << cudaGetErrorString(error) << ")";
}

inline cudaStream_t StreamOf(KernelContext& context) {
  return static_cast<cudaStream_t>(CudaContextOf(context).stream);
}

/// Shared memory of a block that a kernel has without an opt-in, in bytes.
inline constexpr int kStaticSharedBytes = 48 << 10;

/// Returns the latest node of a stream that captures.
inline void* LatestNodeOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* latest = nullptr;
  size_t count = 0;
#if defined(CUDART_VERSION) && CUDART_VERSION < 13000
  CheckCuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &latest,
                                     &count),
            "cudaStreamGetCaptureInfo");
#else
  CheckCuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &latest,
                                     nullptr, &count),
            "cudaStreamGetCaptureInfo");
#endif
  CH_CHECK(status == cudaStreamCaptureStatusActive && count == 1)
      << "a kernel was captured, and its stream has " << count
      << " latest nodes";
  return const_cast<void*>(static_cast<const void*>(latest[0]));
}

/// Issues `kernel` to the stream of `context`; nothing if there are no blocks.
/// `name`, a literal, names the kernel in messages.
template <typename... Params>
void LaunchKernel(const char* name, void (*kernel)(Params...),
                  const LaunchGeometry& geometry, KernelContext& context,
                  std::type_identity_t<Params>... args) {
  if (geometry.blocks == 0 || geometry.blocks_y == 0) return;
  const dim3 grid = {static_cast<unsigned>(geometry.blocks),
                     static_cast<unsigned>(geometry.blocks_y), 1};
  const dim3 block = {static_cast<unsigned>(geometry.threads),
                      static_cast<unsigned>(geometry.threads_y), 1};
  KernelNodes* const nodes = CudaContextOf(context).nodes;
  void* node = nullptr;
  if (nodes != nullptr && nodes->exec != nullptr) {
    CH_CHECK(nodes->next < nodes->captured->nodes.size())
        << "a replay issues kernel " << name << ", which was not captured";
    node = nodes->captured->nodes[nodes->next++];
  }
#if defined(CROSSHATCH_CUDA_EMULATION)
  const emulation::Launch launch = {
      .kernel = name,
      .grid = grid,
      .block = block,
      .dynamic_shared_bytes = static_cast<size_t>(geometry.shared_bytes),
      .code = reinterpret_cast<const void*>(kernel)};
  if (node != nullptr) {
    CheckCuda(
        emulation::SetKernelOfNode(static_cast<cudaGraphExec_t>(nodes->exec),
                                   static_cast<cudaGraphNode_t>(node), launch,
                                   StreamOf(context), [=] { kernel(args...); }),
        name);
    return;
  }
  CheckCuda(emulation::LaunchKernel(launch, StreamOf(context),
                                    [=] { kernel(args...); }),
            name);
#else
  void* pointers[] = {static_cast<void*>(&args)...};
  const void* const code = reinterpret_cast<const void*>(kernel);
  if (geometry.shared_bytes > kStaticSharedBytes) {
    CheckCuda(
        cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             geometry.shared_bytes),
        name);
  }
  if (node != nullptr) {
    cudaKernelNodeParams params = {};
    params.func = const_cast<void*>(code);
    params.gridDim = grid;
    params.blockDim = block;
    params.sharedMemBytes = static_cast<unsigned>(geometry.shared_bytes);
    params.kernelParams = pointers;
    CheckCuda(cudaGraphExecKernelNodeSetParams(
                  static_cast<cudaGraphExec_t>(nodes->exec),
                  static_cast<cudaGraphNode_t>(node), &params),
              name);
    return;
  }
  CheckCuda(cudaLaunchKernel(code, grid, block, pointers,
                             static_cast<size_t>(geometry.shared_bytes),
                             StreamOf(context)),
            name);
#endif
  if (nodes != nullptr) {
    nodes->captured->nodes.push_back(LatestNodeOf(StreamOf(context)));
  }
}

/// Returns the calling thread's number in a grid of one dim.
__device__ __forceinline__ int64_t GlobalThread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t GlobalThreads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;

}  // namespace crosshatch::internal

#endif  // CROSSHATCH_TENSOR_KERNELS_CUDA_CUDA_API_CUH_
