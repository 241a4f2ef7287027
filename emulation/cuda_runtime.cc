// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/cuda_runtime.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/emulation/device_memory.h"
#include "crosshatch/emulation/graph_capture.h"
#include "crosshatch/emulation/idle_runtime.h"
#include "crosshatch/emulation/stream_queue.h"

namespace crosshatch {

namespace emulation {
namespace {

struct DeviceState {
  explicit DeviceState(int64_t bytes) : memory(bytes) {}
  DeviceMemory memory;
  std::mutex mutex;
  std::set<int> peers;
};

struct Settings {
  std::mutex mutex;
  int devices = 2;
  int64_t bytes_each = int64_t{8} << 30;
  int capability = 80;
  bool are_used = false;
};
Settings& TheSettings() {
  static auto* const settings = new Settings;
  return *settings;
}

/// All devices of the process, and its pinned memory.
struct Machine {
  int capability = 0;
  std::vector<std::unique_ptr<DeviceState>> devices;
  std::mutex mutex;
  std::map<uintptr_t, size_t> pinned;
  std::atomic<bool> has_failed{false};
  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> copies{0};
  std::atomic<int64_t> host_functions{0};
  std::atomic<int64_t> allocations{0};
  std::atomic<int64_t> synchronizations{0};
  std::atomic<int64_t> graph_launches{0};

  /// Returns the pinned allocation that may contain `address`.
  MemoryRange PinnedRangeOf(uintptr_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto after = pinned.upper_bound(address);
    if (after == pinned.begin()) return {};
    const auto& [start, size] = *std::prev(after);
    return {start, size};
  }
  bool IsPinned(const void* data, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return PinnedRangeOf(address).Holds(address, bytes);
  }
};

thread_local constinit bool in_host_function = false;
thread_local constinit int current_device = 0;
thread_local constinit cudaError_t last_error = cudaSuccess;

// Created by the first call of the runtime and never destroyed, because streams
// in static objects may end late.
Machine& TheMachine() {
  CH_CHECK(!in_host_function)
      << "a host function calls the CUDA runtime, which it must not";
  static auto* const machine = [] {
    Settings& settings = TheSettings();
    std::lock_guard<std::mutex> lock(settings.mutex);
    settings.are_used = true;
    auto* const made = new Machine;
    made->capability = settings.capability;
    for (int i = 0; i < settings.devices; ++i) {
      made->devices.push_back(
          std::make_unique<DeviceState>(settings.bytes_each));
    }
    return made;
  }();
  return *machine;
}

bool IsDevice(int device) {
  return device >= 0 && device < static_cast<int>(TheMachine().devices.size());
}

DeviceState* CurrentDevice() {
  return IsDevice(current_device)
             ? TheMachine().devices[static_cast<size_t>(current_device)].get()
             : nullptr;
}

DeviceState& DeviceOf(cudaStream_t stream) {
  return *TheMachine().devices[static_cast<size_t>(stream->device)];
}

std::atomic<int> idle_scopes{0};

/// Issues work to a stream, or captures it.
cudaError_t Submit(cudaStream_t stream, StreamQueue::Task work, bool may_block,
                   bool is_kernel = false) {
  if (stream->capture != nullptr) {
    if (stream->capture->is_invalid) {
      return Return(cudaErrorStreamCaptureInvalidated);
    }
    stream->capture->Add(stream, std::move(work), is_kernel);
    return cudaSuccess;
  }
  const absl::Status issued = stream->queue.Issue(std::move(work), may_block);
  return issued.ok() ? cudaSuccess : Return(cudaErrorMemoryAllocation);
}

/// Returns `task` as work of a device, which may access its memory and that of
/// peers.
StreamQueue::Task DeviceWork(DeviceState& device, StreamQueue::Task task) {
  Machine& machine = TheMachine();
  return [&device, &machine, task = std::move(task)]() mutable {
    if (machine.has_failed) return;
    const DeviceAccess access(device.memory);
    std::vector<std::unique_ptr<DeviceAccess>> to_peers;
    std::vector<const DeviceMemory*> memories = {&device.memory};
    {
      std::lock_guard<std::mutex> lock(device.mutex);
      for (int peer : device.peers) {
        memories.push_back(&machine.devices[static_cast<size_t>(peer)]->memory);
        to_peers.push_back(std::make_unique<DeviceAccess>(*memories.back()));
      }
    }
    const auto find = [&](uintptr_t address) -> MemoryRange {
      for (const DeviceMemory* memory : memories) {
        const MemoryRange range = memory->RangeOf(address);
        if (range.bytes > 0) return range;
      }
      return machine.PinnedRangeOf(address);
    };
    const Reach reach(find);
    task();
  };
}

/// Issues work of the stream's device.
cudaError_t IssueDeviceWork(cudaStream_t stream, StreamQueue::Task task,
                            bool is_kernel = false) {
  if (idle_scopes.load(std::memory_order_relaxed) > 0) return cudaSuccess;
  if (TheMachine().has_failed) return Return(cudaErrorLaunchFailure);
  return Submit(stream, DeviceWork(DeviceOf(stream), std::move(task)),
                /*may_block=*/false, is_kernel);
}

/// Returns whether `data` is memory of any device. If so, all `bytes` must be.
bool IsOfDevice(const void* data, size_t bytes, const char* what) {
  for (const auto& device : TheMachine().devices) {
    if (!device->memory.Knows(data)) continue;
    CH_CHECK(device->memory.Holds(data, static_cast<int64_t>(bytes)))
        << what << " of " << bytes
        << " bytes goes beyond the allocation at its address";
    return true;
  }
  return false;
}

}  // namespace

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool HaveDevicesFailed() { return TheMachine().has_failed; }

void CountGraphLaunch() { TheMachine().graph_launches.fetch_add(1); }

void SetDevices(int count, int64_t bytes_each, int capability) {
  CH_CHECK(count >= 0 && count <= kMaxDevices) << count << " devices";
  Settings& settings = TheSettings();
  std::lock_guard<std::mutex> lock(settings.mutex);
  CH_CHECK(!settings.are_used)
      << "SetDevices after the first call of the runtime";
  settings.devices = count;
  settings.bytes_each = bytes_each;
  settings.capability = capability;
}

IdleRuntime::IdleRuntime() { ++idle_scopes; }
IdleRuntime::~IdleRuntime() { --idle_scopes; }

void SetThreadOrder(cudaStream_t stream, uint64_t seed) {
  stream->seed.store(seed);
}

void SetDelays(cudaStream_t stream, uint64_t seed) {
  stream->queue.SetSeed(seed);
  stream->delay_seed = seed;
}

cudaError_t LaunchKernel(const Launch& launch, cudaStream_t stream,
                         absl::AnyInvocable<void()> thread) {
  if (stream == nullptr || stream->device != current_device) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  TheMachine().kernels.fetch_add(1);
  Launch seeded = launch;
  // Each kernel has another order.
  if (stream->seed.load() != 0) seeded.seed = stream->seed.fetch_add(1);
  return IssueDeviceWork(
      stream,
      [seeded, thread = std::move(thread)]() mutable {
        RunGrid(seeded, [&thread] { thread(); });
      },
      /*is_kernel=*/true);
}

cudaError_t SetKernelOfNode(cudaGraphExec_t exec, cudaGraphNode_t node,
                            const Launch& launch, cudaStream_t stream,
                            absl::AnyInvocable<void()> thread) {
  if (exec == nullptr || node == nullptr || stream == nullptr ||
      node->index >= exec->nodes.size() ||
      !exec->nodes[node->index].is_kernel) {
    return Return(cudaErrorInvalidValue);
  }
  Launch seeded = launch;
  seeded.seed = stream->seed.load();
  exec->nodes[node->index].work =
      std::make_shared<StreamQueue::Task>(DeviceWork(
          DeviceOf(stream), [seeded, thread = std::move(thread)]() mutable {
            RunGrid(seeded, [&thread] { thread(); });
          }));
  return cudaSuccess;
}

cudaError_t IssueLibraryWork(cudaStream_t stream,
                             absl::AnyInvocable<void()> work) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  Machine& machine = TheMachine();
  return Submit(
      stream,
      [&machine, work = std::move(work)]() mutable {
        if (machine.has_failed) return;
        std::vector<std::unique_ptr<DeviceAccess>> all;
        for (const auto& device : machine.devices) {
          all.push_back(std::make_unique<DeviceAccess>(device->memory));
        }
        work();
      },
      /*may_block=*/true);
}

void FailDevices() { TheMachine().has_failed = true; }

bool IsMemoryOfDevices(const void* data, size_t bytes) {
  return IsOfDevice(data, bytes, "an operand") ||
         TheMachine().IsPinned(data, bytes);
}

MemoryRange AllocationOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (const auto& device : TheMachine().devices) {
    const MemoryRange range = device->memory.RangeOf(address);
    if (range.bytes > 0) return range;
  }
  return {};
}

RuntimeCounts CountsOfRuntime() {
  const Machine& machine = TheMachine();
  return {machine.kernels,          machine.copies,
          machine.host_functions,   machine.allocations,
          machine.synchronizations, machine.graph_launches};
}

}  // namespace emulation

using emulation::CurrentDevice;
using emulation::DeviceState;
using emulation::Invalidate;
using emulation::IsDevice;
using emulation::IsOfDevice;
using emulation::IssueDeviceWork;
using emulation::Return;
using emulation::Submit;
using emulation::TheMachine;

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge:
      return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched:
      return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaGetLastError() {
  return std::exchange(emulation::last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(TheMachine().devices.size());
  return *count == 0 ? Return(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!IsDevice(device)) return Return(cudaErrorInvalidDevice);
  emulation::current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (CurrentDevice() == nullptr) return Return(cudaErrorNoDevice);
  *device = emulation::current_device;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const DeviceState* const device = CurrentDevice();
  if (device == nullptr) return Return(cudaErrorNoDevice);
  *total = static_cast<size_t>(device->memory.capacity());
  *free = *total - static_cast<size_t>(device->memory.used());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  if (!IsDevice(device)) return Return(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = emulation::kMaxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(emulation::kMaxSharedBytes);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = TheMachine().capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = TheMachine().capability % 10;
      return cudaSuccess;
  }
  return Return(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!IsDevice(device) || !IsDevice(peer)) {
    return Return(cudaErrorInvalidDevice);
  }
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  DeviceState* const device = CurrentDevice();
  if (device == nullptr || !IsDevice(peer) ||
      peer == emulation::current_device) {
    return Return(cudaErrorInvalidDevice);
  }
  if (flags != 0) return Return(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> lock(device->mutex);
  return device->peers.insert(peer).second
             ? cudaSuccess
             : Return(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return Return(cudaErrorInvalidValue);
  if (CurrentDevice() == nullptr) return Return(cudaErrorNoDevice);
  *stream = new CudaStreamState{emulation::current_device};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    return Invalidate(stream, cudaErrorStreamCaptureUnsupported);
  }
  TheMachine().synchronizations.fetch_add(1);
  stream->queue.Now().Block();
  return TheMachine().has_failed ? Return(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags) {
  if (stream == nullptr || event == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  if (flags != 0) return Return(cudaErrorInvalidValue);
  emulation::QueuePoint point;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    point = event->point;
    if (event->capture != nullptr)
      return emulation::WaitInCapture(stream, *event);
  }
  if (stream->capture != nullptr) {
    return Invalidate(stream, cudaErrorStreamCaptureIsolation);
  }
  if (point.Reached()) return cudaSuccess;
  const absl::Status issued = stream->queue.Issue(
      [point = std::move(point)] { point.Block(); }, /*may_block=*/true);
  return issued.ok() ? cudaSuccess : Return(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming) return Return(cudaErrorInvalidValue);
  *event = new CudaEventState;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr || event == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  std::lock_guard<std::mutex> lock(event->mutex);
  event->capture = stream->capture;
  event->captured_at.clear();
  if (stream->capture != nullptr) {
    event->point = {};
    event->captured_at = stream->capture->lanes.at(stream).frontier;
    return cudaSuccess;
  }
  event->point = stream->queue.Now();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (TheMachine().has_failed) return Return(cudaErrorLaunchFailure);
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->capture != nullptr) return Return(cudaErrorCapturedEvent);
  return event->point.Reached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  TheMachine().synchronizations.fetch_add(1);
  emulation::QueuePoint point;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    if (event->capture != nullptr) return Return(cudaErrorCapturedEvent);
    point = event->point;
  }
  point.Block();
  return TheMachine().has_failed ? Return(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void* data) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  emulation::Machine& machine = TheMachine();
  if (machine.has_failed) return Return(cudaErrorLaunchFailure);
  machine.host_functions.fetch_add(1);
  return Submit(
      stream,
      [&machine, function, data] {
        if (machine.has_failed) return;
        emulation::in_host_function = true;
        function(data);
        emulation::in_host_function = false;
      },
      /*may_block=*/true);
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  DeviceState* const device = CurrentDevice();
  if (device == nullptr) return Return(cudaErrorNoDevice);
  if (emulation::IsInStrictCapture()) {
    return Return(cudaErrorStreamCaptureUnsupported);
  }
  TheMachine().allocations.fetch_add(1);
  *data = bytes == 0 ? nullptr
                     : device->memory.Acquire(static_cast<int64_t>(bytes));
  return bytes > 0 && *data == nullptr ? Return(cudaErrorMemoryAllocation)
                                       : cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  if (emulation::IsInStrictCapture()) {
    return Return(cudaErrorStreamCaptureUnsupported);
  }
  for (const auto& device : TheMachine().devices) {
    if (device->memory.Release(data)) return cudaSuccess;
  }
  return Return(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags) {
  if (flags != cudaHostAllocPortable) return Return(cudaErrorInvalidValue);
  emulation::Machine& machine = TheMachine();
  machine.allocations.fetch_add(1);
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  // Page-aligned, as a driver's allocation.
  constexpr size_t kPage = 4096;
  if (posix_memalign(data, kPage, bytes) != 0) {
    *data = nullptr;
    return Return(cudaErrorMemoryAllocation);
  }
  std::lock_guard<std::mutex> lock(machine.mutex);
  machine.pinned[reinterpret_cast<uintptr_t>(*data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (data == nullptr) return cudaSuccess;
  emulation::Machine& machine = TheMachine();
  {
    std::lock_guard<std::mutex> lock(machine.mutex);
    if (machine.pinned.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
      return Return(cudaErrorInvalidValue);
    }
  }
  std::free(data);
  return cudaSuccess;
}

namespace {

cudaMemcpyKind KindOfCopy(bool to_device, bool from_device) {
  if (from_device) {
    return to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
  }
  return to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost;
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const bool to_device = IsOfDevice(to, bytes, "a copy");
  const bool from_device = IsOfDevice(from, bytes, "a copy");
  if (kind != cudaMemcpyDefault && kind != KindOfCopy(to_device, from_device)) {
    return Return(cudaErrorInvalidValue);
  }
  emulation::Machine& machine = TheMachine();
  if (stream->capture != nullptr &&
      ((!from_device && !machine.IsPinned(from, bytes)) ||
       (!to_device && !machine.IsPinned(to, bytes)))) {
    return Invalidate(stream, cudaErrorStreamCaptureUnsupported);
  }
  machine.copies.fetch_add(1);
  if (!from_device && !machine.IsPinned(from, bytes)) {
    const auto* const first = static_cast<const std::byte*>(from);
    return IssueDeviceWork(
        stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
          std::memcpy(to, staged.data(), staged.size());
        });
  }
  const cudaError_t issued = IssueDeviceWork(
      stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  if (issued == cudaSuccess && !to_device && !machine.IsPinned(to, bytes)) {
    stream->queue.Now().Block();
  }
  return issued;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes,
                            cudaStream_t stream) {
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!IsOfDevice(data, bytes, "a memset") &&
      !TheMachine().IsPinned(data, bytes)) {
    return Return(cudaErrorInvalidValue);
  }
  return IssueDeviceWork(
      stream, [data, value, bytes] { std::memset(data, value, bytes); });
}

}  // namespace crosshatch
