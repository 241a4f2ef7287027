// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/emulation/cuda_runtime.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "crosshatch/emulation/cuda_device.h"
#include "crosshatch/emulation/device_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Stream {
 public:
  explicit Stream(uint64_t seed = 0) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    emulation::SetThreadOrder(stream_, seed);
    emulation::SetDelays(stream_, seed);
  }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  cudaStream_t get() const { return stream_; }
  void Synchronize() const {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  /// Issues a host function, which must live until it has run.
  void Host(std::function<void()>& function) const {
    EXPECT_EQ(
        cudaLaunchHostFunc(
            stream_,
            [](void* data) { (*static_cast<std::function<void()>*>(data))(); },
            &function),
        cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() {
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
              cudaSuccess);
  }
  ~Event() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Ints in the memory of the current device.
class Ints {
 public:
  explicit Ints(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()),
              cudaSuccess);
  }
  ~Ints() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  int* data() const { return data_; }
  size_t bytes() const { return count_ * sizeof(int); }

  void Set(const Stream& stream, int byte) const {
    EXPECT_EQ(cudaMemsetAsync(data_, byte, bytes(), stream.get()), cudaSuccess);
  }
  std::vector<int> Read(const Stream& stream) const {
    std::vector<int> values(count_);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data_, bytes(),
                              cudaMemcpyDeviceToHost, stream.get()),
              cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  int* data_ = nullptr;
};

void AddTo(int* values, unsigned count, int what, const Stream& stream) {
  EXPECT_EQ(emulation::LaunchKernel(
                {"add", {(count + 63) / 64}, {64}}, stream.get(),
                [=] {
                  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                  if (i < count) values[i] += what;
                }),
            cudaSuccess);
}

TEST(CudaRuntimeTest, KernelsAndCopiesOfAStreamRunInOrder) {
  for (uint64_t seed : {0, 1, 2}) {
    const Stream stream(seed);
    const Ints ints(1000);
    ints.Set(stream, 0);
    for (int i = 1; i <= 20; ++i) AddTo(ints.data(), 1000, i, stream);
    EXPECT_THAT(ints.Read(stream), Each(210));
  }
}

// Expects that `touch` kills the process, if the processor supports protection.
void ExpectForbidden(const std::function<void()>& touch) {
  if (emulation::IsDeviceMemoryProtected()) {
    EXPECT_DEATH(touch(), "");
  } else {
    touch();
  }
}

TEST(CudaRuntimeDeathTest, TheHostCannotTouchMemoryOfADevice) {
  const Ints ints(4);
  ExpectForbidden([&] { ints.data()[1] = 5; });
  ExpectForbidden([&] {
    std::function<void()> follow = [&] { ints.data()[1] = 5; };
    const Stream stream;
    stream.Host(follow);
    stream.Synchronize();
  });
}

// Launches a kernel of one thread, which adds 1 to `value`.
void AddOneAt(int* value) {
  const Stream stream;
  EXPECT_EQ(emulation::LaunchKernel({"add_one", {1}, {1}}, stream.get(),
                                    [value] {
                                      emulation::StoreValue(
                                          value,
                                          emulation::LoadValue<int>(value) + 1);
                                    }),
            cudaSuccess);
  stream.Synchronize();
}

TEST(CudaRuntimeDeathTest, KernelsTouchMemoryOfPeersOnlyWhenTold) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const Ints there(64);
  const Stream stream_there;
  there.Set(stream_there, 0);
  stream_there.Synchronize();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ExpectForbidden([&] {
    const Stream here;
    AddTo(there.data(), 64, 1, here);
    AddTo(there.data(), 64, -1, here);
  });
  // Not only with the processor's protection.
  EXPECT_DEATH(AddOneAt(there.data()),
               "an access of 4 bytes at .*, which are not all of one "
               "allocation of the device, of a peer");
  int can = 0;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0),
            cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const Stream here;
  AddTo(there.data(), 64, 3, here);
  here.Synchronize();
  EXPECT_THAT(there.Read(stream_there), Each(3));
  // The other device is not the current one.
  EXPECT_EQ(emulation::LaunchKernel({"none"}, stream_there.get(), [] {}),
            cudaErrorInvalidResourceHandle);
}

TEST(CudaRuntimeDeathTest, KernelsReachNoMemoryThatIsNotPinned) {
  auto on_heap = std::make_unique<int>(3);
  EXPECT_DEATH(AddOneAt(on_heap.get()),
               "kernel add_one, block .*: an access of 4 bytes at .* of pinned "
               "memory of the host");
  EXPECT_DEATH(AddOneAt(nullptr), "an access of 4 bytes");
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 8, cudaHostAllocPortable), cudaSuccess);
  auto* const ints = static_cast<int*>(pinned);
  ints[1] = 5;
  AddOneAt(&ints[1]);
  EXPECT_EQ(ints[1], 6);
  EXPECT_DEATH(AddOneAt(&ints[2]), "not all of one allocation");
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
  const Ints of_device(4);
  const Stream stream;
  of_device.Set(stream, 0);
  stream.Synchronize();
  AddOneAt(of_device.data() + 3);
  EXPECT_THAT(of_device.Read(stream), ElementsAre(0, 0, 0, 1));
  EXPECT_DEATH(AddOneAt(of_device.data() + 4), "not all of one allocation");
  EXPECT_DEATH(AddOneAt(of_device.data() - 1), "not all of one allocation");
}

TEST(CudaRuntimeTest, PinnedMemoryIsReadWhenTheCopyRuns) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocPortable), cudaSuccess);
  auto* const source = static_cast<int*>(pinned);
  int pageable = 1;
  *source = 1;
  const Stream stream;
  const Ints from_pinned(1), from_pageable(1);
  std::atomic<bool> open = false;
  std::function<void()> gate = [&] {
    while (!open) std::this_thread::yield();
  };
  stream.Host(gate);
  EXPECT_EQ(cudaMemcpyAsync(from_pinned.data(), source, 4,
                            cudaMemcpyHostToDevice, stream.get()),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(from_pageable.data(), &pageable, 4,
                            cudaMemcpyHostToDevice, stream.get()),
            cudaSuccess);
  *source = pageable = 2;
  open = true;
  EXPECT_THAT(from_pinned.Read(stream), Each(2));
  EXPECT_THAT(from_pageable.Read(stream), Each(1));
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
}

TEST(CudaRuntimeTest, EventsOrderStreams) {
  for (uint64_t seed : {0, 1, 2}) {
    const Stream producer(seed), consumer(seed);
    const Ints ints(64);
    const Event event;
    EXPECT_EQ(cudaEventQuery(event.get()), cudaSuccess);
    std::atomic<bool> open = false;
    std::function<void()> gate = [&] {
      while (!open) std::this_thread::yield();
    };
    ints.Set(producer, 0);
    producer.Host(gate);
    AddTo(ints.data(), 64, 5, producer);
    EXPECT_EQ(cudaEventRecord(event.get(), producer.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(consumer.get(), event.get()), cudaSuccess);
    AddTo(ints.data(), 64, 2, consumer);
    EXPECT_EQ(cudaEventQuery(event.get()), cudaErrorNotReady);
    open = true;
    EXPECT_EQ(cudaEventSynchronize(event.get()), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event.get()), cudaSuccess);
    EXPECT_THAT(ints.Read(consumer), Each(7));
  }
}

// Returns what a consumer reads that does not wait for its producer.
TEST(CudaRuntimeTest, AdversarialStreamsShowAMissingWait) {
  const auto wrong_reads = [](uint64_t seed, bool waits) {
    const Stream producer(seed), consumer(seed + 100);
    const Ints from(1), to(1);
    to.Set(consumer, 0);
    from.Set(producer, 0);
    producer.Synchronize();
    int wrong = 0;
    for (int round = 1; round <= 10; ++round) {
      const Event event;
      AddTo(from.data(), 1, 1, producer);
      EXPECT_EQ(cudaEventRecord(event.get(), producer.get()), cudaSuccess);
      if (waits) {
        EXPECT_EQ(cudaStreamWaitEvent(consumer.get(), event.get()),
                  cudaSuccess);
      }
      EXPECT_EQ(cudaMemcpyAsync(to.data(), from.data(), sizeof(int),
                                cudaMemcpyDeviceToDevice, consumer.get()),
                cudaSuccess);
      wrong += to.Read(consumer)[0] != round ? 1 : 0;
    }
    producer.Synchronize();
    return wrong;
  };
  int shown = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    EXPECT_EQ(wrong_reads(seed, true), 0);
    shown += wrong_reads(seed, false) > 0 ? 1 : 0;
  }
  EXPECT_GT(shown, 0);
}

TEST(CudaRuntimeTest, WhatIsWrongIsAnError) {
  const Stream stream;
  const Ints ints(4);
  int here[4] = {};
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaMemcpyAsync(here, ints.data(), 16, cudaMemcpyHostToDevice,
                            stream.get()),
            cudaErrorInvalidValue);
  EXPECT_EQ(
      cudaMemcpyAsync(here, here, 16, cudaMemcpyDeviceToHost, stream.get()),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(here, 0, 16, stream.get()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(here), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidResourceHandle),
               "cudaErrorInvalidResourceHandle");
  void* much = nullptr;
  EXPECT_EQ(cudaMalloc(&much, size_t{1} << 40), cudaErrorMemoryAllocation);
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total - free, 16u);
}

TEST(CudaRuntimeDeathTest, WhatADeviceWouldLeaveUndefined) {
  const Ints ints(4);
  EXPECT_DEATH(
      {
        const Stream stream;
        (void)cudaMemsetAsync(ints.data(), 0, 17, stream.get());
      },
      "a memset of 17 bytes goes beyond the allocation");
  EXPECT_DEATH(
      {
        const Stream stream;
        std::function<void()> call = [] {
          (void)cudaGetLastError();
          (void)cudaSetDevice(0);
        };
        stream.Host(call);
        stream.Synchronize();
      },
      "a host function calls the CUDA runtime");
}

TEST(CudaRuntimeTest, Counts) {
  const emulation::RuntimeCounts before = emulation::CountsOfRuntime();
  const Stream stream;
  const Ints ints(4);
  ints.Set(stream, 0);
  AddTo(ints.data(), 4, 1, stream);
  EXPECT_THAT(ints.Read(stream), Each(1));
  stream.Synchronize();
  const emulation::RuntimeCounts after = emulation::CountsOfRuntime();
  EXPECT_EQ(after.kernels - before.kernels, 1);
  EXPECT_EQ(after.copies - before.copies, 1);
  EXPECT_EQ(after.allocations - before.allocations, 1);
  EXPECT_EQ(after.synchronizations - before.synchronizations, 1);
}

}  // namespace
}  // namespace crosshatch
