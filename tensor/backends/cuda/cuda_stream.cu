// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/error_context.h"
#include "crosshatch/tensor/backends/cuda/cuda_stream.h"
#include "crosshatch/tensor/kernels/cuda/cuda_api.cuh"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::internal {
namespace {

/// Unused events of one device, kept for reuse: creating one costs more than
/// recording it.
class EventPool {
 public:
  ~EventPool() {
    for (cudaEvent_t event : unused_) cudaEventDestroy(event);
  }

  cudaEvent_t Take() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!unused_.empty()) {
        const cudaEvent_t event = unused_.back();
        unused_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
    return event;
  }
  void GiveBack(cudaEvent_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    unused_.push_back(event);
  }

 private:
  // A reference to an event may be dropped on any thread.
  std::mutex mutex_;
  std::vector<cudaEvent_t> unused_;
};

class Point final : public Event::State {
 public:
  /// \param capture that the stream records; 0: it runs its work
  Point(std::shared_ptr<EventPool> pool, cudaStream_t stream, uint64_t capture)
      : pool_(std::move(pool)), event_(pool_->Take()), capture_(capture) {
    CheckCuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~Point() override { pool_->GiveBack(event_); }

  cudaEvent_t event() const { return event_; }
  uint64_t capture() const { return capture_; }
  bool reached() override {
    // It is no point in time. The launch of the capture has its own event.
    if (capture_ != 0) return true;
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    CheckCuda(error, "cudaEventQuery");
    return true;
  }
  void Block() override {
    if (capture_ != 0) {
      RankContext& context = RankContext::Current();
      context.BreakCapture("the host waits for an event");
      // The launch is before all later work.
      context.compute_stream().Synchronize();
      return;
    }
    CheckCuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }
  void BlockWorker(AgentId /*worker*/) override { Block(); }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
  const uint64_t capture_;
};

/// A graph and its executable copy.
class CudaGraph final : public CapturedWork {
 public:
  CudaGraph(int device, cudaStream_t stream, cudaGraph_t graph,
            std::function<void()> on_launch)
      : device_(device),
        stream_(stream),
        graph_(graph),
        on_launch_(std::move(on_launch)) {
    CheckCuda(cudaGraphInstantiate(&exec_, graph_, 0), "cudaGraphInstantiate");
  }
  ~CudaGraph() override {
    CheckCuda(cudaGraphExecDestroy(exec_), "cudaGraphExecDestroy");
    CheckCuda(cudaGraphDestroy(graph_), "cudaGraphDestroy");
  }

  void Launch() override {
    CheckCuda(cudaSetDevice(device_), "cudaSetDevice");
    CheckCuda(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch");
    on_launch_();
  }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  const int device_;
  const cudaStream_t stream_;
  const cudaGraph_t graph_;
  const std::function<void()> on_launch_;
  cudaGraphExec_t exec_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int device, std::string name, const RankParts& rank,
             const CudaOptions& options)
      : Stream(std::move(name), nullptr),
        device_(device),
        run_worker_(rank.run_worker) {
    SetDevice();
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              "cudaStreamCreateWithFlags");
#if defined(CROSSHATCH_CUDA_EMULATION)
    if (rank.adversarial_seed != 0) {
      const uint64_t seed =
          rank.adversarial_seed * 0x9E3779B97F4A7C15u +
          std::hash<std::string>()(this->name()) +
          static_cast<uint64_t>(rank.rank) * 0xBF58476D1CE4E5B9u;
      emulation::SetDelays(stream_, seed | 1);
      emulation::SetThreadOrder(stream_, seed | 1);
    }
#endif
    void* complaint = nullptr;
    CheckCuda(
        cudaHostAlloc(&complaint, sizeof(Complaint), cudaHostAllocPortable),
        "cudaHostAlloc");
    context_.pool = rank.pool;
    context_.stream = stream_;
    context_.tf32 = options.tf32;
    context_.complaint = new (complaint) Complaint;
    context_.places = std::make_shared<ComplainerPlaces>();
    CheckCuda(cudaMalloc(&context_.scratch, static_cast<size_t>(kScratchBytes)),
              "cudaMalloc");
  }

  ~CudaStream() override {
    Synchronize();
    last_event_ = Event();
    CheckCuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    CheckCuda(cudaFree(context_.scratch), "cudaFree");
    CheckCuda(cudaFreeHost(context_.complaint), "cudaFreeHost");
  }

  Event Record() override {
    if (!is_recorded_) {
      SetDevice();
      last_event_ = Event(std::make_shared<Point>(pool_, stream_, capture_));
      is_recorded_ = true;
    }
    return last_event_;
  }

  void Wait(const Event& event) override {
    Event::State* const state = event.state();
    if (state == nullptr) return;
    SetDevice();
    if (const auto* const point = dynamic_cast<const Point*>(state)) {
      // Captures are ordered as a whole.
      if (point->capture() != capture_) return;
      CheckCuda(cudaStreamWaitEvent(stream_, point->event(), 0),
                "cudaStreamWaitEvent");
      is_recorded_ = false;
    } else {
      // The point of a host queue, which the device cannot wait for.
      state->Block();
    }
  }

  void Synchronize() override {
    if (capture_ != 0) {
      RankContext::Current().BreakCapture(
          absl::StrCat("the host waits for stream ", name()));
    }
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    EndIfThereIsAComplaint();
  }

  bool can_capture() const override { return true; }

  void BeginCapture(uint64_t number) override {
    SetDevice();
    // Memory is allocated during the capture.
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
              "cudaStreamBeginCapture");
    JoinCapture(number);
  }

  void JoinCapture(uint64_t number) override {
    capture_ = number;
    is_recorded_ = false;
  }

  void LeaveCapture() override { JoinCapture(0); }

  std::unique_ptr<CapturedWork> EndCapture() override {
    SetDevice();
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    LeaveCapture();
    return std::make_unique<CudaGraph>(device_, stream_, graph,
                                       [this] { is_recorded_ = false; });
  }

  void CaptureKernels(CapturedKernels& kernels, Task& task) override {
    KernelNodes nodes = {.captured = &kernels};
    IssueTo(nodes, task);
  }

  void UpdateKernels(CapturedWork& work, const CapturedKernels& kernels,
                     Task& task) override {
    CapturedKernels known = kernels;
    KernelNodes nodes = {.captured = &known,
                         .exec = static_cast<CudaGraph&>(work).exec()};
    IssueTo(nodes, task);
    CH_CHECK_EQ(nodes.next, kernels.nodes.size())
        << "a replay issues fewer kernels than were captured";
  }

 private:
  void IssueTo(KernelNodes& nodes, Task& task) {
    SetDevice();
    is_recorded_ = false;
    context_.nodes = &nodes;
    task(context_);
    context_.nodes = nullptr;
  }

  struct HostTask {
    CudaStream* stream;
    Task task;
    IssuedErrorContext at;

    static void Run(void* self) {
      const std::unique_ptr<HostTask> host_task(static_cast<HostTask*>(self));
      CudaStream& stream = *host_task->stream;
      const auto run = [&] {
        const IssuedErrorContextScope place(host_task->at);
        host_task->task(stream.context_);
      };
      if (stream.run_worker_) {
        stream.run_worker_(run);
      } else {
        run();
      }
    }
  };

  void Enqueue(Task task) override {
    SetDevice();
    is_recorded_ = false;
    task(context_);
    is_recorded_ = false;  // It may have issued more work.
    EndIfThereIsAComplaint();
  }

  void EnqueueHost(Task task) override {
    if (capture_ != 0) {
      RankContext::Current().BreakCapture("the host reads or writes elements");
    }
    SetDevice();
    is_recorded_ = false;
    CheckCuda(
        cudaLaunchHostFunc(stream_, &HostTask::Run,
                           new HostTask{this, std::move(task),
                                        IssuedErrorContext::Capture(false)}),
        "cudaLaunchHostFunc");
  }

  void SetDevice() const { CheckCuda(cudaSetDevice(device_), "cudaSetDevice"); }

  /// Checks all work so far. A poisoned rank reports its first error instead of
  /// the consequences.
  void EndIfThereIsAComplaint() const {
    const auto* const kind =
        static_cast<const volatile ComplaintKind*>(&context_.complaint->kind);
    if (*kind == ComplaintKind::kNone) return;
    bool poisoned = false;
    if (run_worker_) {
      run_worker_([&] { poisoned = RankContext::Current().poisoned(); });
    }
    if (poisoned) return;
    // Previous writes are visible from here on.
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    context_.places->End(*context_.complaint);
  }

  const int device_;
  const std::function<void(absl::FunctionRef<void()>)> run_worker_;
  // The number of the capture that records its work; 0: none.
  uint64_t capture_ = 0;
  cudaStream_t stream_ = nullptr;
  CudaKernelContext context_;
  const std::shared_ptr<EventPool> pool_ = std::make_shared<EventPool>();
  Event last_event_;
  // Whether last_event_ is after all issued work. A stream without work has
  // nothing to wait for.
  bool is_recorded_ = true;
};

}  // namespace

std::unique_ptr<Stream> MakeCudaStream(int device, const std::string& name,
                                       const RankParts& rank,
                                       const CudaOptions& options) {
  return std::make_unique<CudaStream>(device, name, rank, options);
}

}  // namespace crosshatch::internal
