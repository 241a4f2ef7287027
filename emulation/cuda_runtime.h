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
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
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

/// \name Graphs
/// A stream that captures records its work instead of running it. Events that
/// are recorded during a capture are edges between streams of the capture, and
/// make a stream that waits for them join it. As with CUDA, each of these is an
/// error that invalidates the capture: the host waits for a stream that
/// captures; a stream that captures waits for work outside of the capture; two
/// captures meet. Stricter than CUDA: so is a copy from or to pageable host
/// memory, whose replays would access it later.
/// @{
struct CudaGraphState;
using cudaGraph_t = CudaGraphState*;
struct CudaGraphExecState;
using cudaGraphExec_t = CudaGraphExecState*;
struct CudaGraphNodeState;
using cudaGraphNode_t = const CudaGraphNodeState*;
struct cudaGraphEdgeData;

enum cudaStreamCaptureMode : int {
  /// The capturing thread may not call what may wait for a device, such as
  /// cudaMalloc.
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaStreamCaptureStatus : int {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode);
/// Ends the capture that began on `stream`. All streams of the capture must
/// have joined it again.
/// \param graph null after an error.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
/// As that of CUDA 13. Returns the nodes that the next work of `stream` is
/// ordered after; there is no edge data.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id = nullptr,
                                     cudaGraph_t* graph = nullptr,
                                     const cudaGraphNode_t** after = nullptr,
                                     const cudaGraphEdgeData** edges = nullptr,
                                     size_t* num_after = nullptr);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
/// Launches that were issued still complete.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
/// @}

namespace emulation {

/// Replaces a captured kernel in later launches, as
/// cudaGraphExecKernelNodeSetParams does.
cudaError_t SetKernelOfNode(cudaGraphExec_t exec, cudaGraphNode_t node,
                            const Launch& launch, cudaStream_t stream,
                            absl::AnyInvocable<void()> thread);

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
  int64_t graph_launches = 0;
};
RuntimeCounts CountsOfRuntime();

}  // namespace emulation
}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_CUDA_RUNTIME_H_
