// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STREAM_H_
#define CROSSHATCH_TENSOR_STREAM_H_

/// \file
/// Streams order work, events join streams. The semantics are CUDA's, on every
/// device: work issued to a stream runs after all work issued to it before;
/// work on different streams is unordered unless an event orders it.
///
/// On the CPU the compute stream normally runs work inline, when it is issued.
/// Every side stream is a queue with a worker of its own, so that a blocked
/// collective blocks no other queue. In adversarial mode the compute stream is
/// a queue too, and every queue delays its work at will by a seeded choice, so
/// that a missing wait in either direction fails a test.
///
/// On a device with queues of its own a task runs at once, on the issuing
/// thread, and issues the device's work; only LaunchHost puts a function of the
/// host's into the device's queue. A backend (device_backend.h) makes the
/// streams of its device.
///
/// What is issued captures pointers and plain values, never a Tensor: memory
/// is kept from reuse by the order of streams (see allocator.h), not by
/// references.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "crosshatch/base/wait_graph.h"

namespace crosshatch {

class ThreadPool;
class Stream;

/// What a kernel may use while it runs. A device whose kernels need more (the
/// queue to issue to) derives from it; its streams hand that to its kernels.
struct KernelContext {
  /// Null: the calling thread alone.
  ThreadPool* pool = nullptr;
};

/// A point in a stream. Copies refer to the same point. A default-constructed
/// event is in the past of every stream.
class Event {
 public:
  /// Engine side: the completion state.
  class State {
   public:
    virtual ~State() = default;
    /// Whether the point has been reached. Nothing that is issued, leased or
    /// counted hangs on the answer: a stream asks to save itself a wait that
    /// is over, the watch of an engine what is still to end, tests and tools
    /// ask to look.
    virtual bool reached() = 0;
    /// Blocks the rank's own thread until the point is reached.
    virtual void Block() = 0;
    /// Blocks the worker thread of a queue, `worker` in the wait graph.
    virtual void BlockWorker(AgentId worker) = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Null when the point was already in the past when it was recorded.
  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

/// An ordered queue of work of one rank.
/// \threadsafety issued to by its rank's thread only.
class Stream {
 public:
  using Task = absl::AnyInvocable<void(KernelContext&)>;

  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::string& name() const { return name_; }

  /// Whether work runs on the calling thread before Launch returns.
  bool runs_inline() const { return inline_context_ != nullptr; }

  /// Issues `task`, a callable taking KernelContext&. Costs a call and nothing
  /// else where the stream runs inline.
  template <typename F>
  void Launch(F&& task) {
    if (inline_context_ != nullptr) {
      task(*inline_context_);
    } else {
      Enqueue(Task(std::forward<F>(task)));
    }
  }

  /// Issues `task`, which is work of the host: it runs after all work issued
  /// before, on a device's queue too. On the CPU all work is the host's.
  template <typename F>
  void LaunchHost(F&& task) {
    if (inline_context_ != nullptr) {
      task(*inline_context_);
    } else {
      EnqueueHost(Task(std::forward<F>(task)));
    }
  }

  /// The point after all work issued so far.
  virtual Event Record() = 0;

  /// Work issued from now on starts after `event` is reached. The issuing
  /// thread goes on, except on an inline stream, whose order is the thread's.
  virtual void Wait(const Event& event) = 0;

  /// Blocks the calling thread until all issued work is done.
  virtual void Synchronize() = 0;

  /// The worker's agent in the wait graph; kNoAgent where there is none.
  virtual AgentId agent() const { return kNoAgent; }

 protected:
  /// \param inline_context not null: work runs inline with it. Not owned.
  Stream(std::string name, KernelContext* inline_context)
      : name_(std::move(name)), inline_context_(inline_context) {}

  virtual void Enqueue(Task task) = 0;
  /// Streams of the CPU run both alike.
  virtual void EnqueueHost(Task task) { Enqueue(std::move(task)); }

 private:
  const std::string name_;
  KernelContext* const inline_context_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STREAM_H_
