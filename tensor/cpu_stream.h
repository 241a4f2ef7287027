// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_CPU_STREAM_H_
#define CROSSHATCH_TENSOR_CPU_STREAM_H_

/// \file
/// The streams of the CPU. RankContext makes them; everybody else sees Stream.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "crosshatch/base/thread_pool.h"
#include "crosshatch/base/wait_graph.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

/// A stream whose work runs when it is issued, on the issuing thread.
/// \param context given to the work; outlives the stream.
std::unique_ptr<Stream> MakeInlineStream(std::string name,
                                         KernelContext* context);

/// What a queue needs of its rank. All pointers outlive the stream and may be
/// null.
struct QueueStreamOptions {
  ThreadPool* pool = nullptr;
  /// Told of every wait of the worker and of the rank's thread.
  WaitGraph* wait_graph = nullptr;
  int rank = 0;
  /// The agent of the rank's thread, which feeds the queue.
  AgentId host_agent = kNoAgent;
  /// Not 0: the worker delays its work by choices that follow from the seed,
  /// the rank and the stream's name.
  uint64_t adversarial_seed = 0;
  /// Runs the worker's loop with whatever its thread should inherit.
  std::function<void(absl::FunctionRef<void()> loop)> run_worker;
  /// Told that the system has no thread for the worker. The stream then runs
  /// its work when it is issued, on the issuing thread.
  std::function<void(const absl::Status& error)> on_no_worker;
};

/// A stream with a queue and a worker thread of its own. Its destructor waits
/// until all issued work is done.
std::unique_ptr<Stream> MakeQueueStream(std::string name,
                                        QueueStreamOptions options);

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_CPU_STREAM_H_
