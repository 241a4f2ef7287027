// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_DEVICE_BACKEND_H_
#define CROSSHATCH_TENSOR_DEVICE_BACKEND_H_

/// \file
/// DeviceBackend: everything that differs between devices. docs/devices.md
/// describes how to add one.

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

/// The parts of a rank that its streams use. All pointers outlive the stream;
/// wait_graph may be null.
struct RankParts {
  int rank = 0;
  /// For CPU kernels.
  ThreadPool* pool = nullptr;
  /// For kernels that run on the rank's thread.
  KernelContext* inline_context = nullptr;
  /// Records every wait of a worker and of the rank's thread.
  WaitGraph* wait_graph = nullptr;
  /// The agent of the rank's thread, which issues to the stream.
  AgentId host_agent = kNoAgent;
  /// If not 0, the stream is adversarial (stream.h).
  uint64_t adversarial_seed = 0;
  /// Runs the loop of a worker with the state that its thread inherits.
  std::function<void(absl::FunctionRef<void()> loop)> run_worker;
  /// Called if the system cannot start a thread for a worker. The stream then
  /// runs its work inline.
  std::function<void(const absl::Status& error)> on_no_worker;
};

enum class StreamRole : uint8_t {
  /// The stream of ops.
  kCompute,
  /// A side stream, on which a blocked collective blocks nothing else.
  kSide,
};

/// A device: its kernels, streams and memory. RankContextOptions::backend
/// selects it; dispatching an op involves no look-up, lock or virtual call of
/// it.
/// \threadsafety Immutable; the ranks of a process may share one.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  /// Returns the device of tensors in its memory.
  Device device() const { return device_; }
  const KernelTable& kernels() const { return kernels_; }
  /// Returns whether the host can address the device's memory. If not, only
  /// kernels access it (host_access.h).
  bool host_addressable() const { return host_addressable_; }

  virtual std::unique_ptr<Stream> MakeStream(const std::string& name,
                                             StreamRole role,
                                             const RankParts& rank) const = 0;
  /// \param adversarial see MakeCachingAllocator.
  virtual std::unique_ptr<Allocator> MakeAllocator(bool adversarial) const = 0;
  /// Returns an allocator of host memory that the device's kernels can access,
  /// for offloading and transfers.
  virtual std::unique_ptr<Allocator> MakeHostAllocator(
      bool adversarial) const = 0;

  /// Lets this device's kernels access memory of `peer`, and its streams wait
  /// for events of the peer, for ranks of one process that exchange data
  /// directly (comm/local). `peer` may be this backend. Repeated calls are
  /// free.
  /// \error kInvalidArgument naming the device that prevents it.
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
