// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/allocator.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/tensor/backends/cpu/cpu_backend.h"
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

constexpr MemoryClass kActivation = MemoryClass::kActivation;

class AllocatorTest : public ::testing::Test {
 protected:
  KernelContext context_;
  std::unique_ptr<Stream> compute_ = MakeInlineStream("compute", &context_);
  std::unique_ptr<Stream> side_ = MakeQueueStream("side", {});
  std::unique_ptr<Allocator> allocator_ = MakeCpuAllocator();
};

TEST_F(AllocatorTest, GivesWritableAlignedMemory) {
  std::vector<Block> blocks;
  for (int64_t bytes : {1, 2, 63, 64, 65, 511, 512, 513, 576, 577, 1023, 1024,
                        1025, 4095, 4097, 65535, 65537, 1 << 20}) {
    Block block = allocator_->Allocate(bytes, kActivation, *compute_);
    EXPECT_EQ(block.bytes(), bytes);
    EXPECT_FALSE(block.empty());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 64, 0u);
    std::memset(block.data(), static_cast<int>(bytes % 251),
                static_cast<size_t>(bytes));
    blocks.push_back(std::move(block));
  }
  for (const Block& block : blocks) {
    for (int64_t i = 0; i < block.bytes(); ++i) {
      ASSERT_EQ(static_cast<int64_t>(block.data()[i]), block.bytes() % 251);
    }
  }
}

TEST_F(AllocatorTest, UnusedPartIsAtMostAnEighth) {
  for (int64_t bytes = 513; bytes < 300000; bytes += 61) {
    const int64_t before = allocator_->reserved_bytes();
    Block block = allocator_->Allocate(bytes, kActivation, *compute_);
    const int64_t held = allocator_->reserved_bytes() - before;
    if (held == 0) continue;  // Reused a block of the same bin.
    EXPECT_GE(held, bytes);
    EXPECT_LE(held - bytes, bytes / 8) << bytes;
  }
}

TEST_F(AllocatorTest, NoBytesNeedNoMemory) {
  Block block = allocator_->Allocate(0, kActivation, *compute_);
  EXPECT_FALSE(block.empty());
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(block.bytes(), 0);
  block.UsedOn(*side_);
  EXPECT_EQ(allocator_->reserved_bytes(), 0);
  EXPECT_EQ(allocator_->stats().current_total, 0);
}

TEST_F(AllocatorTest, MovesHandTheLeaseOver) {
  Block a = allocator_->Allocate(100, kActivation, *compute_);
  std::byte* const data = a.data();
  Block b = std::move(a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(allocator_->stats().current_total, 100);
  Block c = allocator_->Allocate(30, kActivation, *compute_);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(allocator_->stats().current_total, 100);
  c = Block();
  EXPECT_EQ(allocator_->stats().current_total, 0);
}

TEST_F(AllocatorTest, AccountsRequestedBytesByClass) {
  const auto current = [&](MemoryClass memory_class) {
    return allocator_->stats().current[static_cast<size_t>(memory_class)];
  };
  Block parameter =
      allocator_->Allocate(1001, MemoryClass::kParameter, *compute_);
  {
    Block gradient = allocator_->Allocate(500, MemoryClass::kGradient, *side_);
    EXPECT_EQ(current(MemoryClass::kParameter), 1001);
    EXPECT_EQ(current(MemoryClass::kGradient), 500);
    EXPECT_EQ(allocator_->stats().current_total, 1501);
  }
  Block state =
      allocator_->Allocate(7, MemoryClass::kOptimizerState, *compute_);
  EXPECT_THAT(allocator_->stats().current, ElementsAre(1001, 0, 7, 0, 0, 0));
  EXPECT_THAT(allocator_->stats().peak, ElementsAre(1001, 500, 7, 0, 0, 0));
  EXPECT_EQ(allocator_->stats().peak_total, 1501);
  allocator_->ResetPeaks();
  EXPECT_THAT(allocator_->stats().peak, ElementsAre(1001, 0, 7, 0, 0, 0));
  EXPECT_EQ(allocator_->stats().peak_total, 1008);
}

TEST_F(AllocatorTest, ReusesInTheOrderOfAStreamAtOnce) {
  std::byte* first;
  {
    Block block = allocator_->Allocate(1000, kActivation, *side_);
    first = block.data();
  }
  const int64_t reserved = allocator_->reserved_bytes();
  Block again = allocator_->Allocate(1020, kActivation, *side_);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(allocator_->reserved_bytes(), reserved);
}

TEST_F(AllocatorTest, StreamsDoNotShareACache) {
  std::byte* first;
  {
    Block block = allocator_->Allocate(1000, kActivation, *side_);
    first = block.data();
  }
  Block other = allocator_->Allocate(1000, kActivation, *compute_);
  EXPECT_NE(other.data(), first);
}

TEST_F(AllocatorTest, LargeBlocksServeSomewhatSmallerSizes) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  std::byte* first;
  {
    Block block = allocator_->Allocate(kBytes, kActivation, *compute_);
    first = block.data();
  }
  {
    Block smaller =
        allocator_->Allocate(kBytes * 3 / 4, kActivation, *compute_);
    EXPECT_EQ(smaller.data(), first);
    EXPECT_EQ(allocator_->stats().current_total, kBytes * 3 / 4);
  }
  Block half = allocator_->Allocate(kBytes / 2, kActivation, *compute_);
  EXPECT_NE(half.data(), first);
  // It still goes back to where it came from.
  Block again = allocator_->Allocate(kBytes, kActivation, *compute_);
  EXPECT_EQ(again.data(), first);
}

TEST_F(AllocatorTest, NextLeaseWaitsForUsesOnOtherStreams) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto home = MakeQueueStream("home", {.adversarial_seed = seed});
    auto reader = MakeQueueStream("reader", {.adversarial_seed = seed});
    auto allocator = MakeCpuAllocator();
    std::atomic<int> wrong = 0;
    for (int round = 0; round < 30; ++round) {
      Block block = allocator->Allocate(64, kActivation, *home);
      auto* const value = reinterpret_cast<int*>(block.data());
      home->Launch([=](KernelContext&) { *value = round; });
      reader->Wait(home->Record());
      reader->Launch([=, &wrong](KernelContext&) { wrong += *value != round; });
      block.UsedOn(*reader);
    }
    home->Synchronize();
    reader->Synchronize();
    EXPECT_EQ(wrong, 0);
    // One block served all rounds.
    EXPECT_EQ(allocator->reserved_bytes(), 64);
  }
}

TEST_F(AllocatorTest, InlineLeaseBlocksUntilTheOtherStreamIsDone) {
  std::atomic<bool> done = false;
  std::byte* first;
  {
    Block block = allocator_->Allocate(64, kActivation, *compute_);
    first = block.data();
    side_->Launch([&](KernelContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      done = true;
    });
    block.UsedOn(*side_);
  }
  Block next = allocator_->Allocate(64, kActivation, *compute_);
  EXPECT_EQ(next.data(), first);
  EXPECT_TRUE(done);
}

TEST_F(AllocatorTest, LatestUseOfAStreamCounts) {
  std::atomic<int> done = 0;
  {
    Block block = allocator_->Allocate(64, kActivation, *compute_);
    for (int i = 0; i < 3; ++i) {
      side_->Launch([&](KernelContext&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++done;
      });
      block.UsedOn(*side_);
    }
  }
  Block next = allocator_->Allocate(64, kActivation, *compute_);
  EXPECT_EQ(done, 3);
}

TEST_F(AllocatorTest, PrefersMemoryThatNobodyElseUses) {
  Block used = allocator_->Allocate(64, kActivation, *compute_);
  Block unused = allocator_->Allocate(64, kActivation, *compute_);
  std::byte* const expected = unused.data();
  std::atomic<bool> open = false;
  side_->Launch([&](KernelContext&) {
    while (!open) std::this_thread::yield();
  });
  used.UsedOn(*side_);
  unused = Block();
  used = Block();
  // Would never return if it waited for the side stream.
  Block next = allocator_->Allocate(64, kActivation, *compute_);
  EXPECT_EQ(next.data(), expected);
  open = true;
  side_->Synchronize();
}

TEST_F(AllocatorTest, AdversaryFillsWhatItLeases) {
  auto adversary = MakeCpuAllocator(/*adversarial=*/true);
  for (int i = 0; i < 2; ++i) {
    Block block = adversary->Allocate(4, kActivation, *side_);
    auto* const value = reinterpret_cast<uint32_t*>(block.data());
    uint32_t found = 0;
    side_->Launch([&](KernelContext&) {
      found = *value;
      *value = 0;
    });
    side_->Synchronize();
    EXPECT_EQ(found, 0xFFFFFFFFu);
  }
}

// Memory of `capacity` bytes. Returned memory is filled and stays mapped, so
// that a use after the return is detected.
class SmallMemory : public MemorySource {
 public:
  SmallMemory(int64_t capacity, int64_t* wrong)
      : capacity_(capacity), wrong_(wrong) {}
  ~SmallMemory() override {
    EXPECT_TRUE(held_.empty());
    for (const auto& [data, bytes] : gone_) {
      for (int64_t i = 0; i < bytes; ++i) *wrong_ += data[i] != kGone;
      std::free(data);
    }
  }

  std::byte* Acquire(int64_t bytes) override {
    if (used_ + bytes > capacity_) return nullptr;
    used_ += bytes;
    auto* const data = static_cast<std::byte*>(
        std::aligned_alloc(64, static_cast<size_t>(bytes)));
    held_[data] = bytes;
    return data;
  }
  void Release(std::byte* data) override {
    const auto found = held_.find(data);
    ASSERT_NE(found, held_.end());
    std::memset(data, static_cast<int>(kGone),
                static_cast<size_t>(found->second));
    used_ -= found->second;
    gone_.insert(held_.extract(found));
  }
  void SetAllBits(std::byte* data, int64_t bytes, KernelContext&) override {
    std::memset(data, 0xFF, static_cast<size_t>(bytes));
  }

  int64_t used() const { return used_; }

 private:
  static constexpr std::byte kGone{0xDD};

  const int64_t capacity_;
  int64_t* const wrong_;
  int64_t used_ = 0;
  std::map<std::byte*, int64_t> held_;
  std::map<std::byte*, int64_t> gone_;
};

constexpr int64_t kKiB = 1024;

TEST_F(AllocatorTest, FreeMemoryIsReturnedIfThereIsNoMore) {
  int64_t wrong = 0;
  auto memory = std::make_unique<SmallMemory>(10 * kKiB, &wrong);
  const SmallMemory& source = *memory;
  auto allocator = MakeCachingAllocator(Device::Cpu(), std::move(memory));
  const Block kept = allocator->Allocate(kKiB, kActivation, *compute_);
  std::memset(kept.data(), 7, kKiB);
  // Sizes that never repeat, alternating between two streams, that fit one by
  // one.
  for (int64_t kib : {2, 3, 4, 5, 6, 7, 8, 9}) {
    const Block block = allocator->Allocate(kib * kKiB, kActivation,
                                            kib % 2 == 0 ? *compute_ : *side_);
    std::memset(block.data(), static_cast<int>(kib),
                static_cast<size_t>(block.bytes()));
    EXPECT_EQ(allocator->reserved_bytes(), source.used()) << kib;
  }
  EXPECT_EQ(allocator->reserved_bytes(), 10 * kKiB);
  EXPECT_EQ(allocator->stats().peak_total, 10 * kKiB);
  for (int64_t i = 0; i < kKiB; ++i) {
    ASSERT_EQ(static_cast<int>(kept.data()[i]), 7);
  }
}

TEST_F(AllocatorTest, NoMemoryIsReturnedWhileThereIsMore) {
  int64_t wrong = 0;
  auto memory = std::make_unique<SmallMemory>(9 * kKiB, &wrong);
  auto allocator = MakeCachingAllocator(Device::Cpu(), std::move(memory));
  allocator->Allocate(2 * kKiB, kActivation, *compute_);
  allocator->Allocate(3 * kKiB, kActivation, *side_);
  allocator->Allocate(4 * kKiB, kActivation, *compute_);
  EXPECT_EQ(allocator->reserved_bytes(), 9 * kKiB);
  // The last one is leased again.
  allocator->Allocate(4 * kKiB, kActivation, *compute_);
  EXPECT_EQ(allocator->reserved_bytes(), 9 * kKiB);
  allocator->Allocate(kKiB, kActivation, *compute_);
  EXPECT_EQ(allocator->reserved_bytes(), kKiB);
}

// Late tasks write to their blocks, on their own stream and on another.
TEST_F(AllocatorTest, MemoryInUseIsReturnedAfterItsLastUse) {
  int64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto home = MakeQueueStream("home", {.adversarial_seed = seed});
    auto other = MakeQueueStream("other", {.adversarial_seed = seed});
    auto allocator = MakeCachingAllocator(
        Device::Cpu(), std::make_unique<SmallMemory>(8 * kKiB, &wrong));
    for (int round = 0; round < 30; ++round) {
      // Sizes of different bins, so that each needs the memory of the ones
      // before it.
      const int64_t bytes = (3 + round % 6) * kKiB;
      Block block = allocator->Allocate(bytes, kActivation, *home);
      const auto write = [data = block.data(), bytes](KernelContext&) {
        std::memset(data, 1, static_cast<size_t>(bytes));
      };
      if (round % 2 == 0) {
        home->Launch(write);
      } else {
        other->Wait(home->Record());
        other->Launch(write);
        block.UsedOn(*other);
      }
    }
    home->Synchronize();
    other->Synchronize();
  }
  EXPECT_EQ(wrong, 0);
}

class MemoryLog : public MemoryListener {
 public:
  explicit MemoryLog(const SmallMemory& source) : source_(source) {}
  void MemoryGoes(const std::byte* data) override {
    gone.push_back(data);
    used.push_back(source_.used());
  }
  std::vector<const std::byte*> gone;
  std::vector<int64_t> used;

 private:
  const SmallMemory& source_;
};

TEST_F(AllocatorTest, ListenersAreNotifiedBeforeMemoryIsReturned) {
  int64_t wrong = 0;
  auto memory = std::make_unique<SmallMemory>(8 * kKiB, &wrong);
  MemoryLog log(*memory);
  MemoryLog removed(*memory);
  auto allocator = MakeCachingAllocator(Device::Cpu(), std::move(memory));
  allocator->AddListener(log);
  allocator->AddListener(removed);
  allocator->RemoveListener(removed);
  const Block kept = allocator->Allocate(kKiB, kActivation, *compute_);
  const std::byte* first = nullptr;
  const std::byte* second = nullptr;
  {
    const Block a = allocator->Allocate(2 * kKiB, kActivation, *compute_);
    const Block b = allocator->Allocate(3 * kKiB, kActivation, *side_);
    first = a.data();
    second = b.data();
  }
  EXPECT_THAT(log.gone, ElementsAre());
  allocator->Allocate(4 * kKiB, kActivation, *compute_);
  EXPECT_THAT(log.gone, ElementsAre(first, second));
  EXPECT_THAT(log.used, ElementsAre(6 * kKiB, 4 * kKiB));
  EXPECT_THAT(removed.gone, ElementsAre());
}

class RecordingSink : public EventSink {
 public:
  void Write(const LogEvent& event) override {
    log += std::string(event.what) + " " + *event.subject + " " +
           std::to_string(event.bytes) + " " + *event.where + "\n";
  }
  std::string log;
};

TEST_F(AllocatorTest, LogsInTheOrderOfIssue) {
  RecordingSink sink;
  allocator_->set_sink(&sink);
  {
    Block a = allocator_->Allocate(10, MemoryClass::kGatheredParameter, *side_);
    Block b = allocator_->Allocate(0, kActivation, *compute_);
  }
  EXPECT_EQ(sink.log,
            "allocate gathered_parameter 10 side\n"
            "allocate activation 0 compute\n"
            "release activation 0 compute\n"
            "release gathered_parameter 10 side\n");
}

// One random sequence of leases and returns against both allocators.
struct Trace {
  MemoryStats stats;
  std::string log;
};

Trace RunRandomSequence(std::unique_ptr<Allocator> allocator, uint64_t seed) {
  KernelContext context;
  auto compute = MakeInlineStream("compute", &context);
  auto side = MakeQueueStream("side", {.adversarial_seed = seed});
  RecordingSink sink;
  allocator->set_sink(&sink);
  std::mt19937_64 random(seed);
  std::vector<Block> blocks;
  for (int i = 0; i < 400; ++i) {
    if (blocks.empty() || random() % 5 < 3) {
      const auto bits = random() % 16;
      const auto bytes = static_cast<int64_t>(random() % (1u << bits));
      const auto memory_class =
          static_cast<MemoryClass>(random() % kNumMemoryClasses);
      blocks.push_back(allocator->Allocate(bytes, memory_class,
                                           random() % 2 ? *compute : *side));
      side->Launch([](KernelContext&) {});
      if (random() % 2) blocks.back().UsedOn(*side);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
  }
  return {allocator->stats(), sink.log};
}

TEST(AccountingAllocatorTest, AccountsAsTheCpuAllocatorDoes) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Trace cpu = RunRandomSequence(MakeCpuAllocator(), seed);
    const Trace again = RunRandomSequence(MakeCpuAllocator(true), seed);
    const Trace dry = RunRandomSequence(MakeAccountingAllocator(), seed);
    for (const Trace* other : {&again, &dry}) {
      EXPECT_EQ(cpu.stats.current, other->stats.current);
      EXPECT_EQ(cpu.stats.peak, other->stats.peak);
      EXPECT_EQ(cpu.stats.current_total, other->stats.current_total);
      EXPECT_EQ(cpu.stats.peak_total, other->stats.peak_total);
      EXPECT_EQ(cpu.log, other->log);
    }
    EXPECT_GT(cpu.stats.peak_total, 0);
  }
}

TEST(AccountingAllocatorTest, AllocatesNoMemory) {
  KernelContext context;
  auto compute = MakeInlineStream("compute", &context);
  auto allocator = MakeAccountingAllocator();
  EXPECT_EQ(allocator->device(), Device::Meta());
  Block block = allocator->Allocate(int64_t{1} << 50, kActivation, *compute);
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(allocator->reserved_bytes(), 0);
  EXPECT_EQ(allocator->stats().current_total, int64_t{1} << 50);
}

using AllocatorDeathTest = AllocatorTest;

// Fails for more than 100 bytes per block.
class PoorAllocator : public Allocator {
 public:
  Device device() const override { return Device::Cpu(); }
  int64_t reserved_bytes() const override { return 64; }

 private:
  void Lease(Block& block, Stream&) override {
    if (block.bytes() > 100) FailOutOfMemory(block.bytes(), 33);
  }
  void Return(Block&) override {}
};

TEST_F(AllocatorDeathTest, OutOfMemoryReportsTheMemoryInUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  PoorAllocator poor;
  const Block block = poor.Allocate(5, MemoryClass::kGradient, *compute_);
  EXPECT_DEATH(poor.Allocate(101, kActivation, *compute_),
               "out of memory: 101 bytes more than the 64 held on cpu, of which"
               " 5 \\(peak 5\\) .*gradient 5 \\(peak 5\\).*; 33 bytes of free "
               "blocks were given back before");
}

TEST_F(AllocatorDeathTest, OutOfMemoryReportsTheReturnedMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int64_t wrong = 0;
  auto allocator = MakeCachingAllocator(
      Device::Cpu(), std::make_unique<SmallMemory>(8 * kKiB, &wrong));
  const Block kept = allocator->Allocate(1000, kActivation, *compute_);
  allocator->Allocate(2 * kKiB, kActivation, *compute_);
  allocator->Allocate(3 * kKiB, kActivation, *side_);
  EXPECT_DEATH(allocator->Allocate(8 * kKiB, kActivation, *compute_),
               "out of memory: 8192 bytes more than the 1024 held on cpu, of "
               "which 1000 .*; 5120 bytes of free blocks were given back");
}

TEST_F(AllocatorDeathTest, BlocksMustNotOutliveIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        allocator_->set_owner({.context = 1, .name = "rank 3"});
        Block block = allocator_->Allocate(5, kActivation, *compute_);
        allocator_.reset();
      },
      "rank 3 ends while 1 blocks of 5 bytes in all are in use: a Tensor, or a "
      "model .* hand out values");
  EXPECT_DEATH(allocator_->Allocate(-1, kActivation, *compute_),
               "size of an allocation");
}

}  // namespace
}  // namespace crosshatch
