// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STEP_GRAPH_H_
#define CROSSHATCH_TENSOR_STEP_GRAPH_H_

/// \file
/// StepGraph: runs a training step, and replays it as a CUDA graph while its
/// shapes stay the same. docs/cuda_graphs.md is the guide.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/tensor/step_capture.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

struct StepGraphOptions {
  enum class Mode : uint8_t {
    kOff,   ///< Runs each step.
    kAuto,  ///< Replays if it can, else runs the step.
    kOn,    ///< What prevents a replay is an error.
  };
  Mode mode = Mode::kAuto;
  /// Steps that run before the capture: in the first ones optimizers allocate
  /// their state, groups of ranks connect, and FSDP learns its order.
  int warmup = 2;
  /// Returns the texts of all ranks, by rank, such as Communicator::Exchange of
  /// all ranks. Null: there is one rank.
  std::function<absl::StatusOr<std::vector<std::string>>(std::string)> exchange;
};

/// A step and its graph. All ranks run the same steps.
/// \threadsafety The rank's thread only. Destroyed before the optimizers,
///     modules and communicators that the step uses.
class StepGraph {
 public:
  using Step = absl::FunctionRef<absl::StatusOr<TensorList>(TensorSpan inputs)>;

  explicit StepGraph(StepGraphOptions options);

  /// Runs `step` on `inputs`, or replays it on them.
  /// \param inputs local tensors of the device. A captured step reads copies of
  ///     them.
  /// \param step issues the same work in each call with inputs of the same
  ///     sizes, apart from what StepCapture lets change. It reads no element on
  ///     the host.
  /// \returns the results of `step`. The next call may overwrite them.
  /// \error that of `step`, of the exchange, or the rank's first error;
  ///     kFailedPrecondition if mode is kOn and the step cannot be replayed, on
  ///     all ranks, with the reason and the rank that has it. The step has run.
  absl::StatusOr<TensorList> Run(TensorSpan inputs, Step step);

  /// Returns why the last step was not replayed although it might have been;
  /// empty if there is no such reason.
  const std::string& fallback_reason() const { return reason_; }
  int64_t replays() const { return replays_; }
  /// Returns the memory of the graph, which is not part of the allocator's.
  MemoryStats memory() const {
    return capture_ == nullptr ? MemoryStats() : capture_->memory();
  }

 private:
  absl::StatusOr<TensorList> Capture(TensorSpan inputs, Step step);
  /// Returns why not to replay on `inputs`; empty if nothing prevents it.
  std::string ReasonAgainst(TensorSpan inputs) const;
  /// Exchanges this rank's reason, or that it has none, and the identity of its
  /// graph. Sets reason_ if any rank has one.
  absl::Status Agree(const std::string& own);
  /// Returns reason_ as an error if mode is kOn.
  absl::Status Refused() const;

  const StepGraphOptions options_;
  int runs_ = 0;
  int64_t replays_ = 0;
  std::string reason_;
  bool has_failed_ = false;  ///< No further capture is tried.
  std::unique_ptr<StepCapture> capture_;
  /// By rank, what was exchanged after the capture.
  std::vector<std::string> identities_;
  int64_t copied_bytes_ = 0;  ///< Of the captured step.
  TensorList inputs_;
  TensorList results_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STEP_GRAPH_H_
