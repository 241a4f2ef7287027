// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_CUDA_RUNTIME_H_
#define CROSSHATCH_EMULATION_CUDA_RUNTIME_H_

/// \file
/// The functions of the CUDA runtime that Crosshatch uses, without a device:
/// names, parameters and semantics are CUDA's. A stream is a queue with its own
/// thread, which runs copies and kernels. These access memory of their device,
/// of peers, and pinned memory, but no other (reach.h). The host cannot access
/// memory of devices (device_memory.h). What CUDA leaves undefined, or what
/// only a driver would notice, ends the program with a message.
///
/// Stricter than CUDA: the default stream is an error, and so is a call of the
/// runtime by a host function.

#include <cstddef>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "crosshatch/emulation/grid.h"
#include "crosshatch/emulation/reach.h"

namespace crosshatch {

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
};
/// Returns a name such as "cudaErrorInvalidValue".
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
/// Returns and clears the last error of the calling thread.
cudaError_t cudaGetLastError();

/// \name Devices
/// Each thread has a current device, initially 0.
/// @{
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

enum cudaDeviceAttr : int {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device);

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
/// Gives kernels of the current device access to memory of `peer`.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
/// @}

/// \name Streams and events
/// @{
struct CudaStreamState;
using cudaStream_t = CudaStreamState*;
struct CudaEventState;
using cudaEvent_t = CudaEventState*;

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
/// Work that was issued still completes.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

using cudaHostFn_t = void (*)(void*);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void* data);
/// @}

/// \name Memory
/// Of the current device, or pinned memory of the host.
/// @{
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
inline constexpr unsigned cudaHostAllocPortable = 1;
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);

enum cudaMemcpyKind : int {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  /// Inferred from the addresses.
  cudaMemcpyDefault = 4,
};
/// Reads and writes of pageable host memory complete before the call returns.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes,
                            cudaStream_t stream);
/// @}

namespace emulation {

/// Sets the number of devices of the process (at most kMaxDevices, 2 by
/// default), their memory (8 GiB) and their compute capability (80 for 8.0).
/// Call it before any function of the runtime. With 0 devices, the machine has
/// none.
void SetDevices(int count, int64_t bytes_each, int capability = 80);

/// Makes kernels issued to `stream` from now on run blocks and threads in a
/// random order, new for each kernel. 0 restores the order of their indices.
void SetThreadOrder(cudaStream_t stream, uint64_t seed);

/// Makes a new stream adversarial (tensor/stream.h): it delays work at random.
/// 0 has no effect.
void SetDelays(cudaStream_t stream, uint64_t seed);

/// Issues a kernel: `thread` runs once for each thread of the launch, in the
/// stream's thread order.
cudaError_t LaunchKernel(const Launch& launch, cudaStream_t stream,
                         absl::AnyInvocable<void()> thread);

/// Issues work of a library such as NCCL. It may wait for other streams and
/// access the memory of all devices.
cudaError_t IssueLibraryWork(cudaStream_t stream,
                             absl::AnyInvocable<void()> work);

/// Makes all devices fail, as an illegal access does: work in queues is
/// dropped, host functions too, and calls return cudaErrorLaunchFailure. For
/// death tests, because nothing revives them.
void FailDevices();

/// Returns whether devices can access all `bytes` bytes at `data`: memory of
/// one device, or pinned memory.
bool IsMemoryOfDevices(const void* data, size_t bytes);

/// Returns the device allocation that contains `data`, or an empty range for
/// host memory.
MemoryRange AllocationOf(const void* data);

/// Counts of calls of the runtime, by all threads.
struct RuntimeCounts {
  int64_t kernels = 0;
  int64_t copies = 0;
  int64_t host_functions = 0;
  int64_t allocations = 0;
  /// Waits of the host for a stream or an event.
  int64_t synchronizations = 0;
};
RuntimeCounts CountsOfRuntime();

}  // namespace emulation
}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_CUDA_RUNTIME_H_
