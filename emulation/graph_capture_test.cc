// SPDX-License-Identifier: Apache-2.0

/// \file
/// Captures under emulation behave as CUDA documents.

#include <cstdint>
#include <vector>

#include "crosshatch/emulation/cuda_device.h"
#include "crosshatch/emulation/cuda_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

// Streams that delay their work at random, events and memory of one test.
class GraphCaptureTest : public ::testing::Test {
 protected:
  GraphCaptureTest() {
    uint64_t seed = 1;
    for (cudaStream_t* stream : {&a_, &b_}) {
      EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                cudaSuccess);
      emulation::SetDelays(*stream, seed++);
    }
    for (cudaEvent_t* event : {&x_, &y_}) {
      EXPECT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                cudaSuccess);
    }
    void* data = nullptr;
    EXPECT_EQ(cudaHostAlloc(&data, 4 * sizeof(int), cudaHostAllocPortable),
              cudaSuccess);
    ints_ = static_cast<int*>(data);
    for (int i = 0; i < 4; ++i) ints_[i] = 0;
  }
  ~GraphCaptureTest() override {
    if (exec_ != nullptr) {
      EXPECT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess);
    }
    if (graph_ != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
    }
    for (cudaStream_t stream : {a_, b_}) {
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    for (cudaEvent_t event : {x_, y_}) {
      EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    }
    EXPECT_EQ(cudaFreeHost(ints_), cudaSuccess);
  }

  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
  }
  // ints_[to] = ints_[from] + n.
  void Add(cudaStream_t stream, int to, int from, int n) {
    EXPECT_EQ(emulation::LaunchKernel(
                  {.kernel = "add"}, stream,
                  [ints = ints_, to, from, n] { ints[to] = ints[from] + n; }),
              cudaSuccess);
  }
  void Order(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event) {
    EXPECT_EQ(cudaEventRecord(event, earlier), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(later, event, 0), cudaSuccess);
  }
  void Instantiate() {
    ASSERT_EQ(cudaStreamEndCapture(a_, &graph_), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec_, graph_, 0), cudaSuccess);
  }
  // A fork to the second stream and a join: 1 = 0 + 1; 2 = 1 + 10 on the other
  // stream; 0 = 2 + 100.
  void CaptureFork() {
    Begin();
    Add(a_, 1, 0, 1);
    Order(b_, a_, x_);
    Add(b_, 2, 1, 10);
    Order(a_, b_, y_);
    Add(a_, 0, 2, 100);
  }
  void ExpectInvalid() {
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph_),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
    // The streams run work again.
    Add(a_, 3, 3, 1);
    EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
    EXPECT_EQ(ints_[3], 1);
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t x_ = nullptr, y_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  int* ints_ = nullptr;
};

TEST_F(GraphCaptureTest, RunsNothingAndThenEachLaunchInOrder) {
  CaptureFork();
  Instantiate();
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_THAT(std::vector<int>(ints_, ints_ + 3), ElementsAre(0, 0, 0));
  const int64_t launches = emulation::CountsOfRuntime().graph_launches;
  for (int i = 1; i <= 20; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
    Add(a_, 3, 0, 1000);  // After the graph.
  }
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_THAT(std::vector<int>(ints_, ints_ + 4),
              ElementsAre(2220, 2110, 2120, 3220))
      << "after 20 launches";
  EXPECT_EQ(emulation::CountsOfRuntime().graph_launches, launches + 20);
}

TEST_F(GraphCaptureTest, RunsAfterEarlierWorkOfItsStream) {
  CaptureFork();
  Instantiate();
  Add(a_, 0, 0, 5);
  ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_THAT(std::vector<int>(ints_, ints_ + 3), ElementsAre(116, 6, 16));
}

TEST_F(GraphCaptureTest, AReplacedKernelRunsInLaterLaunchesOnly) {
  Begin();
  Add(a_, 0, 0, 1);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* after = nullptr;
  size_t count = 0;
  ASSERT_EQ(cudaStreamGetCaptureInfo(a_, &status, nullptr, nullptr, &after,
                                     nullptr, &count),
            cudaSuccess);
  ASSERT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(count, 1u);
  const cudaGraphNode_t node = after[0];
  Instantiate();
  ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
  EXPECT_EQ(emulation::SetKernelOfNode(exec_, node, {.kernel = "add"}, a_,
                                       [ints = ints_] { ints[0] += 10; }),
            cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(ints_[0], 11);
}

TEST_F(GraphCaptureTest, AStreamMustJoinAgain) {
  Begin();
  Order(b_, a_, x_);
  Add(b_, 1, 0, 1);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph_), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph_, nullptr);
}

TEST_F(GraphCaptureTest, OnlyTheFirstStreamEndsIt) {
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph_), cudaErrorStreamCaptureUnmatched);
  Begin();
  Order(b_, a_, x_);
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph_), cudaErrorStreamCaptureUnmatched);
  Instantiate();
}

TEST_F(GraphCaptureTest, AWaitOfTheHostInvalidatesIt) {
  Begin();
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorStreamCaptureUnsupported);
  ExpectInvalid();
}

TEST_F(GraphCaptureTest, HasNoDependencyOnWorkOutside) {
  Add(b_, 1, 0, 1);
  EXPECT_EQ(cudaEventRecord(x_, b_), cudaSuccess);
  Begin();
  EXPECT_EQ(cudaStreamWaitEvent(a_, x_, 0), cudaErrorStreamCaptureIsolation);
  ExpectInvalid();
}

TEST_F(GraphCaptureTest, TwoCapturesDoNotMeet) {
  Begin();
  ASSERT_EQ(cudaStreamBeginCapture(b_, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecord(x_, b_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(a_, x_, 0), cudaErrorStreamCaptureMerge);
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph_),
            cudaErrorStreamCaptureInvalidated);
  ExpectInvalid();
}

TEST_F(GraphCaptureTest, CopiesOfPageableMemoryInvalidateIt) {
  int pageable = 1;
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, sizeof(int)), cudaSuccess);
  Begin();
  EXPECT_EQ(
      cudaMemcpyAsync(device, &pageable, sizeof(int), cudaMemcpyDefault, a_),
      cudaErrorStreamCaptureUnsupported);
  ExpectInvalid();
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST_F(GraphCaptureTest, ACapturedEventIsNoPointInTime) {
  Begin();
  EXPECT_EQ(cudaEventRecord(x_, a_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(x_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(x_), cudaErrorCapturedEvent);
  Instantiate();
  EXPECT_EQ(cudaStreamWaitEvent(b_, x_, 0), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventRecord(x_, a_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(b_, x_, 0), cudaSuccess);
}

TEST_F(GraphCaptureTest, OnlyRelaxedCapturesAllowAllocations) {
  void* data = nullptr;
  Begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph_), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  Begin();
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  Instantiate();
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST_F(GraphCaptureTest, AHostFunctionRunsInEachLaunch) {
  static int runs = 0;
  Begin();
  EXPECT_EQ(cudaLaunchHostFunc(
                a_, [](void*) { ++runs; }, nullptr),
            cudaSuccess);
  Instantiate();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace crosshatch
