// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/rank_context.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/adversarial_delays.h"
#include "crosshatch/base/process_scopes_testutil.h"
#include "crosshatch/tensor/context_decorator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

TEST(RankContextTest, EveryThreadHasOne) {
  RankContext& mine = RankContext::Current();
  EXPECT_EQ(&RankContext::Current(), &mine);
  EXPECT_EQ(mine.world_size(), 1);
  EXPECT_EQ(mine.device(), Device::Cpu());
  EXPECT_TRUE(mine.compute_stream().runs_inline());
  EXPECT_EQ(&mine.current_stream(), &mine.compute_stream());
  EXPECT_EQ(mine.memory_class(), MemoryClass::kActivation);
  EXPECT_TRUE(mine.grad_enabled());
  EXPECT_EQ(mine.host_agent(), kNoAgent);
  std::thread([&] { EXPECT_NE(&RankContext::Current(), &mine); }).join();
}

TEST(RankContextTest, ScopesSetAndRestore) {
  RankContext& outer = RankContext::Current();
  RankContext rank({.world_rank = 2, .world_size = 4});
  {
    RankContextScope scope(&rank);
    EXPECT_EQ(&RankContext::Current(), &rank);
    EXPECT_EQ(rank.world_rank(), 2);
    {
      StreamScope stream(rank.SideStream("gather"));
      NoGrad no_grad;
      MemoryClassScope memory(MemoryClass::kGradient);
      EXPECT_EQ(rank.current_stream().name(), "gather");
      EXPECT_FALSE(rank.grad_enabled());
      EXPECT_EQ(rank.memory_class(), MemoryClass::kGradient);
      GradModeScope grad(true);
      EXPECT_TRUE(rank.grad_enabled());
      EXPECT_EQ(outer.current_stream().name(), "compute");
      EXPECT_EQ(outer.memory_class(), MemoryClass::kActivation);
      RankContextScope none(nullptr);
      EXPECT_EQ(&RankContext::Current(), &outer);
    }
    EXPECT_EQ(&rank.current_stream(), &rank.compute_stream());
    EXPECT_TRUE(rank.grad_enabled());
    EXPECT_EQ(rank.memory_class(), MemoryClass::kActivation);
  }
  EXPECT_EQ(&RankContext::Current(), &outer);
}

TEST(RankContextTest, SideStreamsAreMadeOnce) {
  RankContext rank({});
  Stream& gather = rank.SideStream("gather");
  EXPECT_EQ(&rank.SideStream("gather"), &gather);
  EXPECT_NE(&rank.SideStream("reduce"), &gather);
  EXPECT_FALSE(gather.runs_inline());
}

TEST(RankContextTest, WorkersInheritIt) {
  RankContext rank({});
  RankContext* seen = nullptr;
  rank.SideStream("side").Launch(
      [&](KernelContext&) { seen = &RankContext::Current(); });
  EXPECT_TRUE(rank.Synchronize().ok());
  EXPECT_EQ(seen, &rank);
}

TEST(RankContextTest, KernelsGetThePool) {
  RankContext rank({.threads = 3});
  EXPECT_EQ(rank.pool().width(), 3);
  std::vector<ThreadPool*> pools;
  const auto record = [&](KernelContext& c) { pools.push_back(c.pool); };
  rank.compute_stream().Launch(record);
  rank.SideStream("side").Launch(record);
  EXPECT_TRUE(rank.Synchronize().ok());
  EXPECT_EQ(pools, std::vector<ThreadPool*>({&rank.pool(), &rank.pool()}));
}

TEST(RankContextTest, AdversaryDefersTheComputeStream) {
  RankContext rank({.adversarial_seed = 1});
  EXPECT_FALSE(rank.compute_stream().runs_inline());
  int value = 0;
  rank.compute_stream().Launch([&](KernelContext&) { value = 1; });
  EXPECT_TRUE(rank.Synchronize().ok());
  EXPECT_EQ(value, 1);
}

TEST(RankContextTest, DryRunComputesNothingAndHoldsNothing) {
  RankContext rank({.dry_run = true, .adversarial_seed = 1});
  EXPECT_TRUE(rank.compute_stream().runs_inline());
  EXPECT_TRUE(rank.SideStream("gather").runs_inline());
  EXPECT_EQ(rank.allocator().device(), Device::Meta());
}

TEST(RankContextTest, DrainsItsStreamsAtItsEnd) {
  std::atomic<int> done = 0;
  {
    RankContext rank({});
    Stream& a = rank.SideStream("a");
    Stream& b = rank.SideStream("b");
    b.Launch([&](KernelContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++done;
    });
    a.Wait(b.Record());
    Block block = rank.allocator().Allocate(64, MemoryClass::kActivation, a);
    a.Launch([&done, data = block.data()](KernelContext&) {
      *data = std::byte{1};
      ++done;
    });
  }
  EXPECT_EQ(done, 2);
}

TEST(RankContextTest, KeepsTheFirstErrorFromAnyThread) {
  RankContext rank({});
  EXPECT_FALSE(rank.poisoned());
  EXPECT_TRUE(rank.status().ok());
  rank.SideStream("side").Launch([](KernelContext&) {
    RankContext::Current().Poison(absl::AbortedError("first"));
  });
  EXPECT_EQ(rank.Synchronize(), absl::AbortedError("first"));
  rank.Poison(absl::InternalError("second"));
  EXPECT_TRUE(rank.poisoned());
  EXPECT_EQ(rank.status(), absl::AbortedError("first"));
  // Work issued after it runs as before.
  int runs = 0;
  rank.SideStream("side").Launch([&](KernelContext&) { ++runs; });
  EXPECT_EQ(rank.Synchronize(), absl::AbortedError("first"));
  EXPECT_EQ(runs, 1);
}

TEST(RankContextTest, RegistersWithTheWaitGraph) {
  WaitGraph graph;
  const AgentId peer = graph.AddAgent(1, "host", kNoAgent);
  bool stalled = false;
  {
    RankContext rank({.world_size = 2, .wait_graph = &graph});
    EXPECT_NE(rank.host_agent(), kNoAgent);
    EXPECT_EQ(rank.AgentOf(rank.compute_stream()), rank.host_agent());
    Stream& side = rank.SideStream("side");
    EXPECT_NE(rank.AgentOf(side), rank.host_agent());
    EXPECT_NE(rank.AgentOf(side), kNoAgent);
    side.Launch([](KernelContext&) {});
    EXPECT_TRUE(rank.Synchronize().ok());
    graph.BeginWait(peer, {rank.host_agent()}, "an exchange",
                    [&](const std::string&) { stalled = true; });
    EXPECT_FALSE(stalled);
  }
  // The rank has finished and will never arrive.
  EXPECT_TRUE(stalled);
  graph.EndWait(peer);
}

class CountingSink : public EventSink {
 public:
  void Write(const LogEvent&) override { ++events; }
  int events = 0;
};

TEST(RankContextTest, LogsAllocationsToItsSink) {
  CountingSink first, second;
  RankContext rank({.sink = &first});
  const auto allocate = [&] {
    rank.allocator().Allocate(8, MemoryClass::kActivation,
                              rank.compute_stream());
  };
  allocate();
  rank.set_sink(&second);
  allocate();
  rank.set_sink(nullptr);
  allocate();
  EXPECT_EQ(first.events, 2);
  EXPECT_EQ(second.events, 2);
}

// Returns what it receives, and records it.
class NotingDecorator : public ContextDecorator {
 public:
  std::unique_ptr<Stream> Decorate(std::unique_ptr<Stream> stream) override {
    seen.push_back(stream->name());
    return stream;
  }
  std::unique_ptr<Allocator> Decorate(
      std::unique_ptr<Allocator> allocator) override {
    seen.push_back("memory");
    return allocator;
  }
  std::vector<std::string> seen;
};

TEST(RankContextTest, HasEveryStreamAndItsMemoryDecorated) {
  for (const bool dry_run : {false, true}) {
    for (const uint64_t seed : {0, 1}) {
      NotingDecorator decorator;
      RankContext rank({.dry_run = dry_run,
                        .adversarial_seed = seed,
                        .decorator = &decorator});
      rank.SideStream("gather");
      rank.SideStream("gather");
      EXPECT_THAT(decorator.seen, ElementsAre("memory", "compute", "gather"));
    }
  }
}

TEST(RankContextTest, CountsCopiedBytes) {
  RankContext rank({});
  rank.AddCopiedBytes(5);
  rank.AddCopiedBytes(7);
  EXPECT_EQ(rank.copied_bytes(), 12);
}

TEST(RankContextTest, ReadsTheSeedOfTheEnvironment) {
  constexpr char kName[] = "CROSSHATCH_ADVERSARIAL_SEED";
  const KeptVariable kept(kName);
  ASSERT_EQ(setenv(kName, "17", 1), 0);
  EXPECT_EQ(*AdversarialSeedOfEnvironment(), 17);
  EXPECT_FALSE(RankContext({}).compute_stream().runs_inline());
  ASSERT_EQ(unsetenv(kName), 0);
  EXPECT_EQ(*AdversarialSeedOfEnvironment(), 0);
  ASSERT_EQ(setenv(kName, "", 1), 0);
  EXPECT_EQ(*AdversarialSeedOfEnvironment(), 0);
  for (const char* bad : {"abc", "-1", "1x", "18446744073709551616"}) {
    ASSERT_EQ(setenv(kName, bad, 1), 0);
    const absl::Status status = AdversarialSeedOfEnvironment().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(std::string(kName) + "=" + bad + " "));
  }
}

TEST(RankContextDeathTest, RefusesWhatCannotBe) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RankContext({}).SideStream("compute"), "is the compute stream");
  EXPECT_DEATH(RankContext({}).Poison(absl::OkStatus()), "with no error");
}

}  // namespace
}  // namespace crosshatch
