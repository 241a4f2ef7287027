// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_RANK_CONTEXT_H_
#define CROSSHATCH_TENSOR_RANK_CONTEXT_H_

/// \file
/// What one rank has of its own: streams, memory, threads, grad mode, the first
/// error. Nothing of it is global: a thread finds its rank's context through
/// one thread-local pointer, which World sets on rank threads and which stream
/// workers and pool threads inherit explicitly.

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

/// How a rank's context is set up.
struct RankContextOptions {
  int world_rank = 0;
  int world_size = 1;
  /// The device that the rank computes on (device_backend.h); null: the CPU.
  /// Outlives the context.
  const DeviceBackend* backend = nullptr;
  /// A dry run: nothing is computed, everything is accounted and logged as on
  /// the backend's device, and tensors are on Device::Meta().
  bool dry_run = false;
  /// Threads of the intra-op pool, the rank's own included.
  int threads = 1;
  /// Not 0: adversarial streams with this seed (see stream.h). 0: as the
  /// environment variable CROSSHATCH_ADVERSARIAL_SEED says, if it is set.
  uint64_t adversarial_seed = 0;
  /// Outlives the context; may be null.
  WaitGraph* wait_graph = nullptr;
  /// Outlives the context; may be null.
  EventSink* sink = nullptr;
  /// Of a thread that has no rank: its tensors may go to other threads, and
  /// outlive the context.
  bool without_rank = false;
  /// Stands around the streams and the memory (context_decorator.h). Outlives
  /// the context; may be null.
  ContextDecorator* decorator = nullptr;
};

/// The context. Lives as long as the rank runs; everything a rank allocates
/// must be gone before it (checked).
///
/// A thread that is none of a rank, such as a data loader's, has a context of
/// its own. What it makes may be given to rank threads (by whatever orders the
/// two, a queue with a lock), which read it from then on, any number of them,
/// and nobody writes to it any more, nor makes it a leaf of their graphs: that
/// fails a check (BeginWrite), and a Clone may be written. Its memory is the
/// host's: a rank of another device brings it there by ToThisDevice
/// (creation.h), and any other use fails a check. It may be dropped on any
/// thread, and later than its maker ends. What a rank makes may be dropped on
/// any thread as well, but is used on the rank's own only: elsewhere its use
/// fails a check.
/// \threadsafety the rank's thread only, except Poison and status.
class RankContext {
 public:
  explicit RankContext(const RankContextOptions& options);
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  /// The calling thread's context. A thread that no World started gets one of
  /// its own on first use: a CPU world of one rank. On a stream's worker it is
  /// that of the stream's rank, for Poison and status.
  static RankContext& Current();

  /// Not 0, and of no other context, before or after.
  uint64_t id() const { return id_; }

  /// Whether it is that of a thread without a rank.
  bool without_rank() const { return options_.without_rank; }

  /// Keeps memory of another context from being given back before work of this
  /// one that uses it is done: until the next Synchronize, or the 64th of other
  /// memory, which synchronizes. Where all streams run inline, nothing need be
  /// kept.
  void Hold(const std::shared_ptr<Storage>& storage);

  int world_rank() const { return options_.world_rank; }
  int world_size() const { return options_.world_size; }
  /// The backend's, or in a dry run Device::Meta().
  Device device() const { return device_; }
  /// Never null.
  const DeviceBackend& backend() const { return *options_.backend; }
  bool dry_run() const { return options_.dry_run; }
  EventSink* sink() const { return options_.sink; }
  void set_sink(EventSink* sink);
  WaitGraph* wait_graph() const { return options_.wait_graph; }
  /// The agent of the rank's host thread; kNoAgent without a wait graph.
  AgentId host_agent() const { return host_agent_; }

  ThreadPool& pool() { return pool_; }
  /// Of the memory that ops allocate from: the device's, or in a
  /// HostMemoryScope the host's.
  Allocator& allocator() { return *current_allocator_; }
  /// The device's in any scope.
  Allocator& device_allocator() { return *allocator_; }
  /// Memory beside the device's, accounted for itself: what is offloaded lies
  /// there. Made when first asked for.
  Allocator& host_allocator();
  /// The device of what allocator() gives.
  Device memory_device() const {
    return current_allocator_ == allocator_.get() ? device_
                                                  : host_allocator_->device();
  }
  /// The device's; ops issue them by Launch (launch.h). A dry run runs none of
  /// them, and asks how much memory they take.
  const KernelTable& kernels() const { return *kernels_; }

  /// The stream that ops are issued to.
  Stream& current_stream() { return *current_stream_; }
  Stream& compute_stream() { return *compute_stream_; }
  /// The side stream of that name, made when first asked for.
  Stream& SideStream(const std::string& name);
  /// Agent of a stream's worker; the host agent for an inline stream.
  AgentId AgentOf(const Stream& stream) const;
  /// Blocks until all streams are idle and returns status().
  absl::Status Synchronize();

  bool grad_enabled() const { return grad_enabled_; }
  /// Returns whether a backward pass runs on the rank (autograd.h).
  bool in_backward() const { return backward_ != nullptr; }
  /// Class of what ops allocate now; kActivation unless a scope changes it.
  MemoryClass memory_class() const { return memory_class_; }

  /// Where what autograd saves goes; null: the graph keeps it (recompute.h).
  SavedTensorStore* saved_tensor_store() const { return saved_tensor_store_; }

  /// Bytes written by copies of what was there already: tensors cloned or made
  /// contiguous, as for a collective or an op, and shards that FSDP stages in
  /// another dtype or memory. Not what an engine packs on its way, nor what is
  /// written into a tensor in place. An op that casts computes; it copies
  /// nothing.
  int64_t copied_bytes() const { return copied_bytes_; }
  void AddCopiedBytes(int64_t bytes) { copied_bytes_ += bytes; }

  /// State that a package above this one keeps with the rank (caches, counts).
  class Extension {
   public:
    virtual ~Extension() = default;
  };
  /// The slot of `key`, any address that its owner chooses; empty until the
  /// owner fills it. Valid until the next call.
  std::unique_ptr<Extension>& extension(const void* key) {
    for (auto& [owner, slot] : extensions_) {
      if (owner == key) return slot;
    }
    return extensions_.emplace_back(key, nullptr).second;
  }

  /// Keeps the first error. Later collectives are skipped, and the error
  /// comes out where a result would: Backward, Step, Synchronize, Item.
  /// \threadsafety any thread.
  void Poison(absl::Status error);
  /// OK, or the first error.
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

  AllocatorOwner Owner() const;
  std::unique_ptr<Stream> MakeStream(const std::string& name, bool is_compute);

  RankContextOptions options_;
  Device device_;
  ThreadPool pool_;
  AgentId host_agent_ = kNoAgent;
  const KernelTable* kernels_ = nullptr;
  std::atomic<bool> is_poisoned_{false};
  mutable std::mutex poison_mutex_;
  absl::Status first_error_;
  KernelContext kernel_context_;
  // Before the streams, and so gone after them: queued work uses memory.
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Allocator> host_allocator_;
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

/// Makes `context` (may be null) the calling thread's for the scope.
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

/// Issues the ops of the scope to `stream`. Orders nothing by itself.
class StreamScope {
 public:
  explicit StreamScope(Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  RankContext& context_;
  Stream* const previous_;
};

/// Switches the recording of the autograd graph for the scope.
class GradModeScope {
 public:
  explicit GradModeScope(bool enabled);
  ~GradModeScope();
  GradModeScope(const GradModeScope&) = delete;
  GradModeScope& operator=(const GradModeScope&) = delete;

 private:
  RankContext& context_;
  const bool previous_;
};

/// Records no graph in the scope.
class NoGrad : public GradModeScope {
 public:
  NoGrad() : GradModeScope(false) {}
};

/// Sets the class of what ops allocate in the scope.
class MemoryClassScope {
 public:
  explicit MemoryClassScope(MemoryClass memory_class);
  ~MemoryClassScope();
  MemoryClassScope(const MemoryClassScope&) = delete;
  MemoryClassScope& operator=(const MemoryClassScope&) = delete;

 private:
  RankContext& context_;
  const MemoryClass previous_;
};

/// What the scope allocates lies in host memory.
class HostMemoryScope {
 public:
  HostMemoryScope();
  ~HostMemoryScope();
  HostMemoryScope(const HostMemoryScope&) = delete;
  HostMemoryScope& operator=(const HostMemoryScope&) = delete;

 private:
  RankContext& context_;
  Allocator* const previous_;
};

/// Sends what autograd saves in the scope to `store` (may be null).
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorStore* store);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  RankContext& context_;
  SavedTensorStore* const previous_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_RANK_CONTEXT_H_
