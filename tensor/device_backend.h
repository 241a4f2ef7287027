// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_DEVICE_BACKEND_H_
#define CROSSHATCH_TENSOR_DEVICE_BACKEND_H_

/// \file
/// DeviceBackend: all that differs from one device to another, in one place.
/// docs/devices.md says how to add one.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/thread_pool.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/kernels/kernel_table.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// What a backend gets of the rank that it makes a stream for. All pointers
/// outlive the stream; wait_graph may be null.
struct RankParts {
  int rank = 0;
  /// For the kernels of the CPU.
  ThreadPool* pool = nullptr;
  /// Kernels get it that the rank's own thread runs.
  KernelContext* inline_context = nullptr;
  /// Told of every wait of a worker and of the rank's thread.
  WaitGraph* wait_graph = nullptr;
  /// The agent of the rank's thread, which feeds the stream.
  AgentId host_agent = kNoAgent;
  /// Not 0: the stream is adversarial (stream.h).
  uint64_t adversarial_seed = 0;
  /// Runs the loop of a worker with whatever its thread should inherit.
  std::function<void(absl::FunctionRef<void()> loop)> run_worker;
  /// Told that the system has no thread for a worker. The stream then runs its
  /// work when it is issued, on the issuing thread.
  std::function<void(const absl::Status& error)> on_no_worker;
};

enum class StreamRole : uint8_t {
  /// Where ops are issued to.
  kCompute,
  /// Beside it: a blocked collective on it holds up nothing else.
  kSide,
};

/// A device: its kernels, streams and memory. A rank finds it once, when its
/// RankContext is made (RankContextOptions::backend); on an op's way there is
/// no look-up, no lock and no virtual call of it.
/// \threadsafety immutable; the ranks of a process may share one.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  /// What tensors in its memory say they are on.
  Device device() const { return device_; }
  const KernelTable& kernels() const { return kernels_; }
  /// Whether the host reads and writes the device's memory by its addresses.
  /// Where not, only kernels do (host_access.h).
  bool host_addressable() const { return host_addressable_; }

  virtual std::unique_ptr<Stream> MakeStream(const std::string& name,
                                             StreamRole role,
                                             const RankParts& rank) const = 0;
  /// \param adversarial see MakeCachingAllocator.
  virtual std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const = 0;
  /// Host memory, which the device's kernels reach too: what is offloaded lies
  /// there, and what is on its way to the device or back.
  virtual std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const = 0;

  /// Lets this device's kernels use memory of `peer`'s, and its streams wait
  /// for events of the peer's, as ranks of one process ask for that exchange
  /// data by themselves (comm/local). Of itself a backend is asked too. To ask
  /// again is free.
  /// \error kInvalidArgument naming the device that keeps them apart.
  virtual absl::Status ReachPeer(const DeviceBackend& peer) const;

 protected:
  /// \param kernels complete (checked); outlives the backend.
  DeviceBackend(Device device, const KernelTable& kernels,
                bool host_addressable);

 private:
  const Device device_;
  const KernelTable& kernels_;
  const bool host_addressable_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_DEVICE_BACKEND_H_
