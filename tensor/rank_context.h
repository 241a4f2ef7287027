// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_RANK_CONTEXT_H_
#define CROSSHATCH_TENSOR_RANK_CONTEXT_H_

/// \file
/// RankContext: the state of one rank: streams, memory, threads, grad mode,
/// first error. There are no globals: a thread finds its rank's context through
/// one thread-local pointer, which World sets on rank threads and which workers
/// of streams and pools inherit explicitly.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/base/event_sink.h"
#include "crosshatch/base/thread_pool.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

struct KernelTable;
class BackwardEngine;
class DeviceBackend;
class SavedTensorStore;
class Storage;
class ContextDecorator;
class StepCapture;

/// Options of a RankContext.
struct RankContextOptions {
  int world_rank = 0;
  int world_size = 1;
  /// The device that the rank computes on (device_backend.h); null: the CPU.
  /// Must outlive the context.
  const DeviceBackend* backend = nullptr;
  /// A dry run computes nothing. Memory and events are accounted and logged as
  /// on the backend's device, and tensors are on Device::Meta().
  bool dry_run = false;
  /// Threads of the intra-op pool, including the rank's own.
  int threads = 1;
  /// Seed of adversarial streams (stream.h). 0: the environment variable
  /// CROSSHATCH_ADVERSARIAL_SEED, or ordinary streams if it is not set.
  uint64_t adversarial_seed = 0;
  /// Outlives the context; may be null.
  WaitGraph* wait_graph = nullptr;
  /// Outlives the context; may be null.
  EventSink* sink = nullptr;
  /// The context of a thread without a rank, whose tensors may be passed to
  /// other threads and outlive the context.
  bool without_rank = false;
  /// For tests: wraps the streams and the allocator (context_decorator.h). Must
  /// outlive the context; may be null.
  ContextDecorator* decorator = nullptr;
};

/// The state of one rank, for as long as the rank runs. All memory allocated by
/// the rank must be freed before (checked).
///
/// A rank's tensors are used on the rank's thread only (checked); they may be
/// destroyed on any thread.
///
/// A thread without a rank, such as a data loader's, has its own context. Its
/// tensors may be passed to rank threads, e.g. through a queue with a lock.
/// From then on any number of threads may read them and none may write to them
/// or make them leaves (checked by BeginWrite); a Clone may be written. They
/// are in host memory: a rank on another device copies them with ToThisDevice
/// (creation.h); any other use there fails a check. They may be destroyed on
/// any thread, also after the thread that made them has ended.
/// \threadsafety The rank's thread only, except Poison and status.
class RankContext {
 public:
  explicit RankContext(const RankContextOptions& options);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  /// Returns the calling thread's context. A thread that no World started gets
  /// its own on first use, a CPU world of one rank. On a stream's worker it is
  /// the context of the stream's rank, for Poison and status.
  static RankContext& Current() {
    return current_ != nullptr ? *current_ : OwnOfThread();
  }

  /// Returns a unique id, never 0 and never reused.
  uint64_t id() const { return id_; }

  /// Returns whether this is the context of a thread without a rank.
  bool without_rank() const { return options_.without_rank; }

  /// Keeps memory of another context alive until work of this one that uses it
  /// is done: until the next Synchronize, which the 64th held storage triggers.
  /// Does nothing if all streams run inline.
  void Hold(const std::shared_ptr<Storage>& storage);

  int world_rank() const { return options_.world_rank; }
  int world_size() const { return options_.world_size; }
  /// Returns the backend's device, or Device::Meta() in a dry run.
  Device device() const { return device_; }
  /// Never null.
  const DeviceBackend& backend() const { return *options_.backend; }
  bool dry_run() const { return options_.dry_run; }
  EventSink* sink() const { return options_.sink; }
  void set_sink(EventSink* sink);
  WaitGraph* wait_graph() const { return options_.wait_graph; }
  /// Returns the agent of the rank's host thread; kNoAgent without a wait
  /// graph.
  AgentId host_agent() const { return host_agent_; }

  ThreadPool& pool() { return pool_; }
  /// Returns the allocator of ops: the device's, or in a HostMemoryScope the
  /// host's.
  Allocator& allocator() { return *current_allocator_; }
  /// Returns the device's allocator in any scope.
  Allocator& device_allocator() { return *allocator_; }
  /// Returns the allocator of host memory for offloading, accounted separately.
  /// Created on first use.
  Allocator& host_allocator();
  /// Returns the device of memory from allocator().
  Device memory_device() const {
    return current_allocator_ == allocator_.get() ? device_
                                                  : host_allocator_->device();
  }
  /// Returns the device's kernels. Ops issue them with Launch (launch.h). A dry
  /// run calls only their workspace functions.
  const KernelTable& kernels() const { return *kernels_; }

  /// Returns the stream that ops are issued to.
  Stream& current_stream() { return *current_stream_; }
  Stream& compute_stream() { return *compute_stream_; }
  /// Returns the side stream of that name, created on first use.
  Stream& SideStream(const std::string& name);
  /// Returns the agent of a stream's worker; the host agent if it runs inline.
  AgentId AgentOf(const Stream& stream) const;
  /// Blocks until all streams are idle and returns status().
  absl::Status Synchronize();

  bool grad_enabled() const { return grad_enabled_; }
  /// Returns whether a backward pass runs on the rank (autograd.h).
  bool in_backward() const { return backward_ != nullptr; }
  /// Returns the capture in progress (step_capture.h); null if there is none.
  StepCapture* capture() const { return capture_; }
  /// Ends the capture in progress, if there is one, because what follows cannot
  /// be captured. See StepCapture::Break.
  void BreakCapture(const std::string& why);
  /// Returns the class of memory that ops allocate; kActivation by default.
  MemoryClass memory_class() const { return memory_class_; }

  /// Returns the store for tensors that autograd saves; null: the graph keeps
  /// them (recompute.h).
  SavedTensorStore* saved_tensor_store() const { return saved_tensor_store_; }

  /// Returns the bytes written by copies: tensors cloned or made contiguous for
  /// a collective or an op, and shards that FSDP stages in another dtype or
  /// memory. Not counted are packing by an engine, writes into a tensor in
  /// place, and casts.
  int64_t copied_bytes() const { return copied_bytes_; }
  void AddCopiedBytes(int64_t bytes) { copied_bytes_ += bytes; }

  /// State of the rank that a higher package owns (caches, counts).
  class Extension {
   public:
    virtual ~Extension() = default;
  };
  /// Returns the slot of `key`, an address that the owner chooses; null until
  /// the owner fills it. Valid until the next call.
  std::unique_ptr<Extension>& extension(const void* key) {
    for (auto& [owner, slot] : extensions_) {
      if (owner == key) return slot;
    }
    return extensions_.emplace_back(key, nullptr).second;
  }
  /// Returns the rank's T, an Extension that the first call makes.
  template <typename T>
  T& Get() {
    static char key;
    std::unique_ptr<Extension>& slot = extension(&key);
    if (slot == nullptr) slot = std::make_unique<T>();
    return static_cast<T&>(*slot);
  }

  /// Records the first error. Later collectives are skipped, and the error is
  /// returned by Backward, Step, Synchronize and Item.
  /// \threadsafety any thread.
  void Poison(absl::Status error);
  /// Returns OK or the first error.
  /// \threadsafety any thread.
  absl::Status status() const;
  bool poisoned() const { return is_poisoned_.load(std::memory_order_acquire); }

 private:
  friend class RankContextScope;
  friend class StreamScope;
  friend class GradModeScope;
  friend class MemoryClassScope;
  friend class HostMemoryScope;
  friend class SavedTensorScope;
  friend class BackwardEngine;
  friend class GraphTies;
  friend class StepCapture;

  static RankContext& OwnOfThread();
  AllocatorOwner Owner() const;
  std::unique_ptr<Stream> MakeStream(const std::string& name, bool is_compute);

  // Of the rank that the calling thread works for; null: none yet.
  static constinit inline thread_local RankContext* current_ = nullptr;

  RankContextOptions options_;
  Device device_;
  ThreadPool pool_;
  AgentId host_agent_ = kNoAgent;
  const KernelTable* kernels_ = nullptr;
  std::atomic<bool> is_poisoned_{false};
  mutable std::mutex poison_mutex_;
  absl::Status first_error_;
  KernelContext kernel_context_;
  // Declared before the streams, and so destroyed after them, because queued
  // work uses memory.
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Allocator> host_allocator_;
  // Of captured steps.
  std::vector<std::unique_ptr<Allocator>> graph_memory_;
  StepCapture* capture_ = nullptr;
  Allocator* current_allocator_ = nullptr;
  std::unique_ptr<Stream> compute_stream_;
  std::vector<std::unique_ptr<Stream>> side_streams_;
  Stream* current_stream_ = nullptr;
  bool grad_enabled_ = true;
  MemoryClass memory_class_ = MemoryClass::kActivation;
  SavedTensorStore* saved_tensor_store_ = nullptr;
  int64_t copied_bytes_ = 0;
  const uint64_t id_;
  std::vector<std::shared_ptr<Storage>> held_;
  // Autograd's: the number of the latest node, and the innermost Backward.
  uint64_t node_sequence_ = 0;
  BackwardEngine* backward_ = nullptr;
  std::vector<std::pair<const void*, std::unique_ptr<Extension>>> extensions_;
};

/// Makes `context` (may be null) the calling thread's context for the scope.
class RankContextScope final : public ErrorContext {
 public:
  explicit RankContextScope(RankContext* context);
  ~RankContextScope();

  /// "rank 1"; empty for a context of no rank.
  std::string Describe() const override;

 private:
  RankContext* const context_;
  RankContext* const previous_;
};

/// Replaces a part of the context's state for a scope.
template <typename T>
class ContextStateScope {
 public:
  ContextStateScope(const ContextStateScope&) = delete;
  ContextStateScope& operator=(const ContextStateScope&) = delete;

 protected:
  ContextStateScope(T& state, T value)
      : state_(state), previous_(std::exchange(state, value)) {}
  ~ContextStateScope() { state_ = previous_; }

 private:
  T& state_;
  const T previous_;
};

/// Issues the ops of the scope to `stream`. Does not order streams.
class StreamScope : public ContextStateScope<Stream*> {
 public:
  explicit StreamScope(Stream& stream);
};

/// Enables or disables recording of the autograd graph for the scope.
class GradModeScope : public ContextStateScope<bool> {
 public:
  explicit GradModeScope(bool enabled);
};

/// Disables recording of the graph for the scope.
class NoGrad : public GradModeScope {
 public:
  NoGrad() : GradModeScope(false) {}
};

/// Sets the class of memory that ops allocate in the scope.
class MemoryClassScope : public ContextStateScope<MemoryClass> {
 public:
  explicit MemoryClassScope(MemoryClass memory_class);
};

/// Allocates in host memory for the scope.
class HostMemoryScope : public ContextStateScope<Allocator*> {
 public:
  HostMemoryScope();
};

/// Stores what autograd saves in the scope in `store` (may be null).
class SavedTensorScope : public ContextStateScope<SavedTensorStore*> {
 public:
  explicit SavedTensorScope(SavedTensorStore* store);
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_RANK_CONTEXT_H_
