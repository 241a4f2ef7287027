// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_EMULATION_GRAPH_CAPTURE_H_
#define CROSSHATCH_EMULATION_GRAPH_CAPTURE_H_

/// \file
/// CUDA graphs under emulation: captures of streams, and their replays.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "crosshatch/emulation/cuda_runtime.h"
#include "crosshatch/emulation/stream_queue.h"

namespace crosshatch {

/// A captured kernel, copy, host function, or call of a library.
struct CudaGraphNodeState {
  size_t index = 0;  ///< In its graph.
  /// The number of the stream that it was issued to.
  size_t lane = 0;
  /// Nodes that run before, with lower indices.
  std::vector<const CudaGraphNodeState*> after;
  /// Shared with launches that have not run yet.
  std::shared_ptr<emulation::StreamQueue::Task> work;
  bool is_kernel = false;
};

struct CudaGraphState {
  std::vector<std::unique_ptr<CudaGraphNodeState>> nodes;
  /// By lane, the seed of its delays.
  std::vector<uint64_t> seeds;
};

/// An executable copy of a graph. Each lane is a queue with its own thread, so
/// that lanes that no edge orders run concurrently.
struct CudaGraphExecState {
  explicit CudaGraphExecState(const CudaGraphState& graph);

  /// Issues all nodes: after the work of `stream`, and before its later work.
  void Launch(emulation::StreamQueue& stream);

  struct Node {
    size_t lane = 0;
    std::vector<size_t> after;
    std::shared_ptr<emulation::StreamQueue::Task> work;
    bool is_kernel = false;
  };
  std::vector<Node> nodes;
  std::vector<std::unique_ptr<emulation::StreamQueue>> lanes;
};

namespace emulation {

/// The nodes that the next node of a stream, or a wait for an event, is
/// ordered after.
using Frontier = std::vector<const CudaGraphNodeState*>;

/// A capture in progress, or one that has ended. One thread captures.
struct Capture {
  explicit Capture(CudaStreamState* begun_at, bool forbids_unsafe_calls)
      : origin(begun_at), is_strict(forbids_unsafe_calls) {}

  /// Makes `stream` capture into this one, after `frontier`.
  void Join(CudaStreamState* stream, const Frontier& frontier, uint64_t seed);
  void Add(CudaStreamState* stream, StreamQueue::Task work, bool is_kernel);
  /// Returns whether all work is ordered before the end of the origin.
  bool IsJoined() const;

  CudaStreamState* const origin;
  const bool is_strict;
  bool is_invalid = false;
  bool has_ended = false;
  std::unique_ptr<CudaGraphState> graph = std::make_unique<CudaGraphState>();
  struct Lane {
    size_t index = 0;
    Frontier frontier;
  };
  std::map<CudaStreamState*, Lane> lanes;
};

/// Makes a stream wait for an event that was recorded in a capture.
cudaError_t WaitInCapture(cudaStream_t stream, const CudaEventState& event);
/// Makes the capture of a stream fail.
/// \returns the error
cudaError_t Invalidate(cudaStream_t stream, cudaError_t error);
/// Returns whether the calling thread may not call what may wait for a device.
bool IsInStrictCapture();

/// \name Defined with the runtime
/// @{
/// Returns the error, and notes it for cudaGetLastError.
cudaError_t Return(cudaError_t error);
bool HaveDevicesFailed();
void CountGraphLaunch();
/// @}

}  // namespace emulation

struct CudaStreamState {
  int device = 0;
  emulation::StreamQueue queue;
  // The seed of the thread order of its kernels, set by the issuing thread.
  std::atomic<uint64_t> seed{0};
  uint64_t delay_seed = 0;
  /// Null: it runs its work.
  std::shared_ptr<emulation::Capture> capture;
};

struct CudaEventState {
  std::mutex mutex;
  emulation::QueuePoint point;
  /// Set if it was last recorded on a stream that captured.
  std::shared_ptr<emulation::Capture> capture;
  emulation::Frontier captured_at;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_EMULATION_GRAPH_CAPTURE_H_
