// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TENSOR_STEP_CAPTURE_H_
#define CROSSHATCH_TENSOR_STEP_CAPTURE_H_

/// \file
/// StepCapture: the work of a rank's streams, recorded while the host issues it
/// once, and issued again by one call. StepGraph (step_graph.h) decides when.
/// docs/cuda_graphs.md describes what a replay does.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/stream.h"

namespace crosshatch {

class RankContext;

/// While it captures, streams record their work and run nothing, and ops
/// allocate memory that nothing else uses as long as the rank's context lives.
///
/// What the host would do in each step again, other than issuing work, is
/// registered while it captures: OnReplay, AfterLaunch, LaunchEachStep.
/// \threadsafety The rank's thread only.
class StepCapture {
 public:
  /// Returns why the context's work cannot be captured; empty if it can.
  static std::string ReasonAgainst(RankContext& context);

  /// Begins. Returns free memory to the device before, because the capture
  /// allocates its own.
  /// \pre ReasonAgainst is empty; nothing else is captured
  explicit StepCapture(RankContext& context);
  /// Ends the capture, if it did not end, without running its work.
  ~StepCapture();
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  /// Ends the capture early, because what follows cannot be captured: issues
  /// the work so far, and streams run what follows. Does nothing if it has
  /// ended.
  /// \param why "the host waits for stream compute"; the module or op that runs
  ///     is added
  void Break(const std::string& why);
  /// Ends the capture. Its work has not run.
  void End();
  /// Returns why the capture ended early; empty if it did not.
  const std::string& broken_by() const { return broken_by_; }

  /// Issues the captured work after all work of the rank's streams, and before
  /// all that is issued later. In the first call the host has just done its
  /// part; later calls call what was registered.
  /// \pre End, not broken
  void Launch();

  /// \name Called while it captures
  /// @{
  /// Calls `action` before each launch but the first, in the order of calls.
  void OnReplay(std::function<void()> action) {
    on_replay_.push_back(std::move(action));
  }
  /// Calls `action` after each launch, with its end.
  void AfterLaunch(std::function<void(const Event& end)> action) {
    after_launch_.push_back(std::move(action));
  }
  /// Issues kernels whose arguments change from launch to launch. `task` issues
  /// the same kernels in each call; it is called now, and after the actions of
  /// OnReplay before each launch but the first.
  void LaunchEachStep(Stream& stream, Stream::Task task);
  void AddToIdentity(absl::string_view part);
  /// @}

  /// Returns a number, from 1, that no other capture of the process has.
  uint64_t number() const { return number_; }
  /// Returns a hash of the parts added to it: of the collectives, in order.
  uint64_t identity() const { return identity_; }
  /// Returns the memory of the capture.
  const MemoryStats& memory() const { return memory_->stats(); }

 private:
  struct EachStep {
    Stream* stream;
    Stream::Task task;
    CapturedKernels kernels;
  };

  static uint64_t NextNumber();
  /// Ends the recording of streams.
  void Finish();
  void Issue();
  void ExchangeAllocators();

  RankContext& context_;
  const uint64_t number_;
  std::unique_ptr<CapturedWork> work_;
  /// Another one of the context while it captures.
  Allocator* memory_ = nullptr;
  std::unique_ptr<Allocator> replaced_;
  bool captures_ = false;
  bool was_launched_ = false;
  std::string broken_by_;
  uint64_t identity_ = 0;
  std::vector<std::function<void()>> on_replay_;
  std::vector<std::function<void(const Event&)>> after_launch_;
  std::vector<EachStep> each_step_;
};

}  // namespace crosshatch

#endif  // CROSSHATCH_TENSOR_STEP_CAPTURE_H_
