// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/backends/cpu/cpu_stream.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "crosshatch/base/process_scopes_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAreArray;

std::unique_ptr<Stream> Queue(uint64_t seed = 0, std::string name = "side") {
  return MakeQueueStream(std::move(name), {.adversarial_seed = seed});
}

/// Blocks tasks until it is opened.
class Gate {
 public:
  void Open() { open_.store(true); }
  void Pass() {
    while (!open_.load()) std::this_thread::yield();
  }

 private:
  std::atomic<bool> open_{false};
};

TEST(InlineStreamTest, RunsWorkWhenItIsIssuedWithItsContext) {
  ThreadPool pool(1);
  KernelContext context{.pool = &pool};
  auto stream = MakeInlineStream("compute", &context);
  EXPECT_TRUE(stream->runs_inline());
  EXPECT_EQ(stream->name(), "compute");
  int runs = 0;
  stream->Launch([&](KernelContext& given) {
    EXPECT_EQ(given.pool, &pool);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(stream->Record().state(), nullptr);
  stream->Synchronize();
}

TEST(InlineStreamTest, WaitBlocksTheIssuingThread) {
  KernelContext context;
  auto compute = MakeInlineStream("compute", &context);
  auto side = Queue();
  int value = 0;
  side->Launch([&](KernelContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    value = 1;
  });
  compute->Wait(side->Record());
  compute->Launch([&](KernelContext&) { EXPECT_EQ(value, 1); });
}

TEST(QueueStreamTest, RunsWorkInOrderOnItsOwnThread) {
  for (uint64_t seed : {0, 1, 2}) {
    ThreadPool pool(1);
    auto stream =
        MakeQueueStream("side", {.pool = &pool, .adversarial_seed = seed});
    EXPECT_FALSE(stream->runs_inline());
    std::vector<int> order, expected;
    for (int i = 0; i < 300; ++i) {
      expected.push_back(i);
      stream->Launch([&, i](KernelContext& context) {
        EXPECT_EQ(context.pool, &pool);
        order.push_back(i);
      });
    }
    stream->Synchronize();
    EXPECT_THAT(order, ElementsAreArray(expected));
  }
}

TEST(QueueStreamTest, DoesNotBlockTheIssuingThread) {
  auto a = Queue(0, "a");
  auto b = Queue(0, "b");
  Gate gate;
  std::atomic<int> runs = 0;
  a->Launch([&](KernelContext&) { gate.Pass(); });
  const Event event = a->Record();
  b->Wait(event);
  b->Launch([&](KernelContext&) { ++runs; });
  EXPECT_FALSE(event.state()->reached());
  EXPECT_EQ(runs, 0);
  gate.Open();
  b->Synchronize();
  EXPECT_TRUE(event.state()->reached());
  EXPECT_EQ(runs, 1);
}

TEST(QueueStreamTest, BlockedQueueBlocksNoOther) {
  auto a = Queue(0, "a");
  auto b = Queue(0, "b");
  Gate gate;
  a->Launch([&](KernelContext&) { gate.Pass(); });
  bool ran = false;
  b->Launch([&](KernelContext&) { ran = true; });
  b->Synchronize();
  EXPECT_TRUE(ran);
  gate.Open();
}

TEST(QueueStreamTest, EventOrdersOnlyWhatWasIssuedBeforeIt) {
  auto a = Queue(0, "a");
  Gate gate;
  int value = 0;
  a->Launch([&](KernelContext&) { value = 1; });
  const Event event = a->Record();
  a->Launch([&](KernelContext&) { gate.Pass(); });
  event.state()->Block();
  EXPECT_EQ(value, 1);
  gate.Open();
}

TEST(QueueStreamTest, PointsWithNoWorkBetweenThemAreOne) {
  auto stream = Queue();
  EXPECT_EQ(stream->Record().state(), nullptr);
  stream->Launch([](KernelContext&) {});
  const Event first = stream->Record();
  EXPECT_EQ(stream->Record().state(), first.state());
  stream->Launch([](KernelContext&) {});
  EXPECT_NE(stream->Record().state(), first.state());
}

TEST(QueueStreamTest, WaitForItsOwnPastOrForNothingIsFree) {
  auto stream = Queue();
  stream->Launch([](KernelContext&) {});
  stream->Wait(stream->Record());
  stream->Wait(Event());
  stream->Synchronize();
}

TEST(QueueStreamTest, EndsAfterItsWork) {
  int runs = 0;
  Event event;
  {
    auto stream = Queue(3);
    for (int i = 0; i < 20; ++i)
      stream->Launch([&](KernelContext&) { ++runs; });
    event = stream->Record();
  }
  EXPECT_EQ(runs, 20);
  EXPECT_TRUE(event.state()->reached());
  event.state()->Block();
}

TEST(QueueStreamTest, WorkerRunsInWhatItInherits) {
  std::string log;
  {
    auto stream = MakeQueueStream(
        "side", {.run_worker = [&](absl::FunctionRef<void()> loop) {
          log += "begin ";
          loop();
          log += "end";
        }});
    stream->Launch([&](KernelContext&) { log += "task "; });
  }
  EXPECT_EQ(log, "begin task end");
}

TEST(QueueStreamTest, DropsWhatATaskHoldsBeforeTheEvent) {
  auto stream = Queue();
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  stream->Launch([held = std::move(held)](KernelContext&) { ++*held; });
  stream->Synchronize();
  EXPECT_TRUE(watch.expired());
}

// Runs a producer on one stream and a consumer on the other, with waits in both
// directions. A value must be consumed in its own round, and the buffer must
// not be overwritten before it is read.
int WrongReads(uint64_t seed, bool wait_for_product, bool wait_for_reader) {
  auto producer = Queue(seed, "producer");
  auto consumer = Queue(seed, "consumer");
  // Atomics, because the injected faults make it a race.
  std::atomic<int> buffer = 0;
  std::atomic<int> wrong = 0;
  for (int round = 1; round <= 40; ++round) {
    producer->Launch([&, round](KernelContext&) { buffer = round; });
    if (wait_for_product) consumer->Wait(producer->Record());
    consumer->Launch([&, round](KernelContext&) { wrong += buffer != round; });
    if (wait_for_reader) producer->Wait(consumer->Record());
  }
  consumer->Synchronize();
  producer->Synchronize();
  return wrong;
}

TEST(AdversarialModeTest, ShowsAMissingWaitInEitherDirection) {
  constexpr int kSeeds = 5;
  int late_product = 0, early_overwrite = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_EQ(WrongReads(seed, true, true), 0) << seed;
    late_product += WrongReads(seed, false, true) > 0;
    early_overwrite += WrongReads(seed, true, false) > 0;
  }
  // Depends on scheduling, but at least some runs must show it.
  EXPECT_GE(late_product, 2);
  EXPECT_GE(early_overwrite, 2);
}

TEST(AdversarialModeTest, ShowsOneMissingWaitWithinAFewSeeds) {
  int shown = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto producer = Queue(seed, "producer");
    auto consumer = Queue(seed, "consumer");
    std::atomic<int> buffer = 0, read = 0;
    producer->Launch([&](KernelContext&) { buffer = 1; });
    consumer->Launch([&](KernelContext&) { read = buffer.load(); });
    consumer->Synchronize();
    producer->Synchronize();
    shown += read == 0;
  }
  EXPECT_GT(shown, 0);
}

class WaitGraphOfStreamsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Stream> GraphQueue(std::string name, uint64_t seed = 0) {
    return MakeQueueStream(
        std::move(name),
        {.wait_graph = &graph_, .host_agent = host_, .adversarial_seed = seed});
  }

  WaitGraph graph_;
  AgentId host_ = graph_.AddAgent(0, "host", kNoAgent);
};

TEST_F(WaitGraphOfStreamsTest, BusyQueuesAreNeverTakenForAStall) {
  // A stall would be reported to this wait of another agent, which waits for
  // the queues' rank.
  const AgentId peer = graph_.AddAgent(1, "host", kNoAgent);
  std::atomic<int> stalls = 0;
  std::string reason;
  WaitGraph::Stalls found =
      graph_.BeginWait(peer, {host_}, "a peer", [&](const std::string& text) {
        ++stalls;
        reason = text;
      });
  found.Run();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    auto a = GraphQueue("a", seed);
    auto b = GraphQueue("b", seed);
    int value = 0;
    for (int round = 0; round < 100; ++round) {
      a->Launch([&](KernelContext&) { ++value; });
      b->Wait(a->Record());
      b->Launch([&](KernelContext&) { ++value; });
      a->Wait(b->Record());
      if (round % 7 == 0) a->Synchronize();
      if (round % 5 == 0) b->Record().state()->Block();
    }
    a->Synchronize();
    EXPECT_EQ(value, 200);
  }
  EXPECT_EQ(stalls, 0) << reason;
  graph_.EndWait(peer);
}

TEST_F(WaitGraphOfStreamsTest, ChainOfWaitsLeadsToTheStuckTask) {
  // A task on `a` waits for a peer that waits for this rank's thread, which in
  // turn waits for `b`, which waits for `a`.
  const AgentId peer = graph_.AddAgent(1, "host", kNoAgent);
  graph_.BeginWait(peer, {host_}, "its turn", nullptr).Run();

  auto a = GraphQueue("a");
  auto b = GraphQueue("b");
  std::string reason;
  Gate gate;
  a->Launch([&, agent = a->agent()](KernelContext&) {
    graph_
        .BeginWait(agent, {peer}, "an exchange",
                   [&](const std::string& text) {
                     reason = text;
                     gate.Open();
                   })
        .Run();
    gate.Pass();
    graph_.EndWait(agent);
  });
  b->Wait(a->Record());
  b->Synchronize();
  EXPECT_THAT(reason, ::testing::HasSubstr("rank 0 (stream a) waits for rank 1 "
                                           "(host) in an exchange"));
  EXPECT_THAT(reason,
              ::testing::HasSubstr("rank 0 (host) waits for rank 0 (stream b) "
                                   "in work on stream b"));
  EXPECT_THAT(reason, ::testing::HasSubstr("rank 0 (stream b) waits for rank 0 "
                                           "(stream a) in work on stream a"));
  graph_.EndWait(peer);
}

TEST_F(WaitGraphOfStreamsTest, IdleQueueWaitsForItsRank) {
  auto a = GraphQueue("a");
  const AgentId peer = graph_.AddAgent(1, "host", kNoAgent);
  std::atomic<bool> stalled = false;
  graph_
      .BeginWait(peer, {a->agent()}, "a collective",
                 [&](const std::string&) { stalled = true; })
      .Run();
  a->Launch([](KernelContext&) {});
  a->Synchronize();
  EXPECT_FALSE(stalled);
  // The rank waits for the peer. The stall is found whether the queue is idle
  // now or becomes idle later.
  graph_.BeginWait(host_, {peer}, "an exchange", nullptr).Run();
  while (!stalled) std::this_thread::yield();
  graph_.EndWait(host_);
  graph_.EndWait(peer);
}

TEST(QueueStream, RunsItsWorkItselfWhereTheSystemHasNoThreadForIt) {
  const FewThreadsScope scope(0);
  absl::Status error;
  const auto stream = MakeQueueStream(
      "comm", {.rank = 3, .on_no_worker = [&](const absl::Status& status) {
                 error = status;
               }});
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(error.message()),
              testing::HasSubstr("the worker of stream comm of rank 3"));
  bool ran = false;
  stream->Launch([&](KernelContext&) { ran = true; });
  EXPECT_TRUE(ran);
  stream->Wait(stream->Record());
  stream->Synchronize();
}

}  // namespace
}  // namespace crosshatch
