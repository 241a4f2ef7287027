// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cuda/cuda_stream.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/emulation/cuda_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

using ::testing::ElementsAreArray;

std::unique_ptr<Stream> StreamOf(const std::string& name, uint64_t seed = 0,
                                 int device = 0) {
  return MakeCudaStream(device, name, {.adversarial_seed = seed});
}

TEST(CudaStreamTest, ATaskRunsAtOnceAndAHostTaskInTheQueue) {
  const auto stream = StreamOf("compute");
  EXPECT_FALSE(stream->runs_inline());
  const auto here = std::this_thread::get_id();
  std::atomic<bool> open = false;
  bool ran = false;
  stream->LaunchHost([&](KernelContext&) {
    EXPECT_NE(std::this_thread::get_id(), here);
    while (!open) std::this_thread::yield();
  });
  stream->Launch([&](KernelContext&) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    ran = true;
  });
  EXPECT_TRUE(ran);
  const Event event = stream->Record();
  EXPECT_FALSE(event.state()->reached());
  open = true;
  event.state()->Block();
  EXPECT_TRUE(event.state()->reached());
}

TEST(CudaStreamTest, HostTasksRunInOrder) {
  for (uint64_t seed : {0, 1, 2}) {
    const auto stream = StreamOf("compute", seed);
    std::vector<int> order, expected;
    for (int i = 0; i < 100; ++i) {
      expected.push_back(i);
      stream->LaunchHost([&, i](KernelContext&) { order.push_back(i); });
    }
    stream->Synchronize();
    EXPECT_THAT(order, ElementsAreArray(expected));
  }
}

TEST(CudaStreamTest, HostTasksInheritWhatWorkersDo) {
  std::string log;
  const auto stream = MakeCudaStream(
      0, "side", {.run_worker = [&](absl::FunctionRef<void()> loop) {
        log += "begin ";
        loop();
        log += "end";
      }});
  stream->LaunchHost([&](KernelContext&) { log += "task "; });
  stream->Synchronize();
  EXPECT_EQ(log, "begin task end");
}

TEST(CudaStreamTest, EventsJoinStreamsOfAllDevices) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    const auto a = StreamOf("a", seed, 0);
    const auto b = StreamOf("b", seed, 1);
    int value = 0;
    for (int round = 1; round <= 20; ++round) {
      a->LaunchHost([&](KernelContext&) { ++value; });
      b->Wait(a->Record());
      b->LaunchHost([&](KernelContext&) { ++value; });
      a->Wait(b->Record());
    }
    a->Synchronize();
    EXPECT_EQ(value, 40);
  }
}

TEST(CudaStreamTest, PointsWithNothingBetweenThemAreOne) {
  const auto stream = StreamOf("compute");
  EXPECT_EQ(stream->Record().state(), nullptr);
  stream->Launch([](KernelContext&) {});
  const Event first = stream->Record();
  EXPECT_EQ(stream->Record().state(), first.state());
  stream->LaunchHost([](KernelContext&) {});
  EXPECT_NE(stream->Record().state(), first.state());
}

TEST(CudaStreamTest, APointAfterAWaitIsAnother) {
  const auto waiting = StreamOf("waiting");
  const auto other = StreamOf("other");
  waiting->Launch([](KernelContext&) {});
  const Event before = waiting->Record();
  std::atomic<bool> open = false;
  other->LaunchHost([&](KernelContext&) {
    while (!open) std::this_thread::yield();
  });
  waiting->Wait(other->Record());
  const Event after = waiting->Record();
  EXPECT_FALSE(after.state()->reached());
  open = true;
  after.state()->Block();
  EXPECT_TRUE(before.state()->reached());
}

// A host function would never run.
TEST(CudaStreamDeathTest, AnErrorOfTheDeviceEndsAWaitForAnEvent) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto wait_after_failure = [](bool blocks) {
    const auto stream = StreamOf("compute");
    std::atomic<bool> open = false;
    stream->LaunchHost([&](KernelContext&) {
      while (!open) std::this_thread::yield();
    });
    stream->LaunchHost([](KernelContext&) {});
    const Event event = stream->Record();
    emulation::FailDevices();
    open = true;
    if (blocks) event.state()->Block();
    while (!event.state()->reached()) std::this_thread::yield();
  };
  EXPECT_DEATH(wait_after_failure(false),
               "cudaEventQuery: cudaErrorLaunchFailure");
  EXPECT_DEATH(wait_after_failure(true),
               "cudaEventSynchronize: cudaErrorLaunchFailure");
}

TEST(CudaStreamTest, AnEventOutlivesItsStream) {
  Event event;
  int runs = 0;
  {
    const auto stream = StreamOf("compute", 3);
    for (int i = 0; i < 20; ++i) {
      stream->LaunchHost([&](KernelContext&) { ++runs; });
    }
    event = stream->Record();
  }
  EXPECT_EQ(runs, 20);
  EXPECT_TRUE(event.state()->reached());
}

}  // namespace
}  // namespace crosshatch::internal
