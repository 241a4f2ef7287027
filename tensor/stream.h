// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STREAM_H_
#define CROSSHATCH_TENSOR_STREAM_H_

/// \file
/// Stream and Event, with CUDA's semantics on every device: work issued to a
/// stream runs after all work issued to it before; work on different streams is
/// unordered unless an event orders it.
///
/// On the CPU the compute stream normally runs work inline, when it is issued.
/// Every side stream is a queue with its own worker thread, so that a blocked
/// collective blocks no other queue. In adversarial mode the compute stream is
/// a queue too, and every queue delays its work at random (seeded), so that a
/// missing wait in either direction fails a test.
///
/// On a device with its own queues a task runs at once, on the issuing thread,
/// and enqueues the device's work; LaunchHost enqueues a host function. A
/// backend (device_backend.h) creates the streams of its device.
///
/// Tasks capture pointers and plain values, never a Tensor: the order of
/// streams protects memory from reuse (allocator.h), not references.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "crosshatch/base/wait_graph.h"

namespace crosshatch {

class ThreadPool;
class Stream;

/// Resources of a kernel while it runs. A device whose kernels need more, such
/// as the queue to issue to, derives from it.
struct KernelContext {
  /// Null: the kernel runs on the calling thread.
  ThreadPool* pool = nullptr;
};

/// A point in a stream. Copies refer to the same point. A default-constructed
/// event is always reached.
class Event {
 public:
  /// The completion state, implemented by backends.
  class State {
   public:
    virtual ~State() = default;
    /// Returns whether the point has been reached. What is issued, leased or
    /// counted must not depend on the result; it serves to skip completed
    /// waits, to watch collectives, and for tests and tools.
    virtual bool reached() = 0;
    /// Blocks the rank's own thread until the point is reached.
    virtual void Block() = 0;
    /// Blocks the worker thread of a queue, `worker` in the wait graph.
    virtual void BlockWorker(AgentId worker) = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Null if the point was already reached when it was recorded.
  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

/// Kernels that a capture has recorded, in order, as a device names them.
struct CapturedKernels {
  std::vector<void*> nodes;
};

/// The work of a capture. It may be destroyed while a launch runs.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Issues all of it to the stream on which the capture began.
  virtual void Launch() = 0;
};

/// An ordered queue of work of one rank.
/// \threadsafety Work is issued by the rank's thread only.
class Stream {
 public:
  using Task = absl::AnyInvocable<void(KernelContext&)>;

  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::string& name() const { return name_; }

  /// Returns whether work runs on the calling thread before Launch returns.
  bool runs_inline() const { return inline_context_ != nullptr; }
  /// The context of work that runs inline; null if the stream is a queue.
  KernelContext* inline_context() const { return inline_context_; }

  /// Issues `task`, a callable taking KernelContext&. An inline stream just
  /// calls it.
  template <typename F>
  void Launch(F&& task) {
    if (inline_context_ != nullptr) {
      task(*inline_context_);
    } else {
      Enqueue(Task(std::forward<F>(task)));
    }
  }

  /// Issues `task` as a host function, in order with the work of a device's
  /// queue. On the CPU this is Launch.
  template <typename F>
  void LaunchHost(F&& task) {
    if (inline_context_ != nullptr) {
      task(*inline_context_);
    } else {
      EnqueueHost(Task(std::forward<F>(task)));
    }
  }

  /// Returns the point after all work issued so far.
  virtual Event Record() = 0;

  /// Makes work issued from now on start after `event` is reached. The issuing
  /// thread continues, except on an inline stream.
  virtual void Wait(const Event& event) = 0;

  /// Blocks the calling thread until all issued work is done.
  virtual void Synchronize() = 0;

  /// \name Capture (step_capture.h)
  /// A stream that captures records its work and runs nothing. Its events order
  /// the work of the capture, and order nothing outside of it: a capture is
  /// launched after all earlier work, and before all later work.
  /// @{
  virtual bool can_capture() const { return false; }
  /// Begins capture `number`, which is not 0.
  virtual void BeginCapture(uint64_t /*number*/) {}
  /// Captures from the next Wait for an event of capture `number` on.
  virtual void JoinCapture(uint64_t /*number*/) {}
  virtual void LeaveCapture() {}
  /// Ends the capture that began on this stream.
  virtual std::unique_ptr<CapturedWork> EndCapture() { return nullptr; }
  /// Captures the kernels that `task` issues.
  virtual void CaptureKernels(CapturedKernels& /*kernels*/, Task& /*task*/) {}
  /// Replaces arguments of captured kernels, in later launches, by those with
  /// which `task` issues them.
  virtual void UpdateKernels(CapturedWork& /*work*/,
                             const CapturedKernels& /*kernels*/,
                             Task& /*task*/) {}
  /// @}

  /// Returns the worker's agent in the wait graph, or kNoAgent.
  virtual AgentId agent() const { return kNoAgent; }

 protected:
  /// \param inline_context if not null, work runs inline with it. Not owned.
  Stream(std::string name, KernelContext* inline_context)
      : name_(std::move(name)), inline_context_(inline_context) {}

  virtual void Enqueue(Task task) = 0;
  /// CPU streams treat both alike.
  virtual void EnqueueHost(Task task) { Enqueue(std::move(task)); }

 private:
  const std::string name_;
  KernelContext* const inline_context_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STREAM_H_
