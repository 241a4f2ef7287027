// SPDX-License-Identifier: Apache-2.0
// Tensors that go from thread to thread: made by a data loader's, read and
// dropped by ranks'.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/tensor/allocator.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// A queue as users write it.
class Queue {
 public:
  void Push(Tensor tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    tensors_.push_back(std::move(tensor));
    changed_.notify_one();
  }
  Tensor Pop() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !tensors_.empty(); });
    Tensor tensor = std::move(tensors_.front());
    tensors_.pop_front();
    return tensor;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Tensor> tensors_;
};

std::vector<float> Batch(int step) {
  return {static_cast<float>(step), 1, 2, static_cast<float>(-step)};
}

float SumOfBatch(const Tensor& batch) {
  // Uses a strided read and a product.
  const Tensor square = MatMul(View(batch, {2, 2}), Ones({2, 2}));
  return Sum(Transpose(square, 0, 1)).ToVector<float>()[0];
}

// 0: the rank's stream runs inline.
class LoaderTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(LoaderTest, FeedsARank) {
  constexpr int kSteps = 200;
  Queue queue;
  // [loader]
  std::thread loader([&] {
    for (int step = 0; step < kSteps; ++step) {
      // Some of what the loader makes it drops itself.
      const Tensor scaled = Mul(FromValues<float>({4}, Batch(step)), 2.0);
      queue.Push(Add(scaled, Full({4}, 1)));
    }
  });
  // [/loader]
  RankContext rank({.adversarial_seed = GetParam()});
  const RankContextScope scope(&rank);
  const Tensor weight = Ones({4}).set_requires_grad(true);
  for (int step = 0; step < kSteps; ++step) {
    // [from_the_loader]
    const Tensor batch = ToThisDevice(queue.Pop());
    EXPECT_EQ(SumOfBatch(batch), 2 * (2 * 3 + 4));
    ASSERT_TRUE(Backward(Sum(Mul(weight, batch))).ok());
    // [/from_the_loader]
  }
  loader.join();
  EXPECT_TRUE(rank.Synchronize().ok());
  EXPECT_EQ(Sum(weight.grad()).ToVector<float>()[0], kSteps * (2 * 3 + 4));
}

TEST_P(LoaderTest, FeedsManyRanksWithTheSame) {
  constexpr int kSteps = 50;
  constexpr int kRanks = 3;
  Queue queues[kRanks];
  std::vector<std::thread> ranks;
  std::vector<int> wrong(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      RankContext rank({.world_rank = r, .adversarial_seed = GetParam()});
      const RankContextScope scope(&rank);
      for (int step = 0; step < kSteps; ++step) {
        const Tensor batch = queues[r].Pop();
        Stream& side = rank.SideStream("side");
        float sum = 0;
        side.Launch([&sum, data = batch.data<float>()](KernelContext&) {
          for (int i = 0; i < 4; ++i) sum += data[i];
        });
        batch.storage()->block().UsedOn(side);
        wrong[static_cast<size_t>(r)] += SumOfBatch(batch) != 6;
        side.Synchronize();
        wrong[static_cast<size_t>(r)] += sum != 3;
      }
    });
  }
  std::thread loader([&] {
    for (int step = 0; step < kSteps; ++step) {
      const Tensor batch = FromValues<float>({4}, Batch(step));
      for (Queue& queue : queues) queue.Push(batch);
    }
  });
  loader.join();
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

// The queue may be far behind when the last reference is dropped.
TEST_P(LoaderTest, MayReuseMemoryOnlyAfterTheRanksWork) {
  RankContext rank({.adversarial_seed = GetParam()});
  const RankContextScope scope(&rank);
  Queue to_loader, to_rank;
  std::thread loader([&] {
    for (int step = 0; step < 100; ++step) {
      // All of one size, so that the next tensor would reuse the memory of a
      // returned one.
      to_rank.Push(Full({64}, step));
      to_loader.Pop();
    }
  });
  const Tensor total = Zeros({64});
  double expected = 0;
  for (int step = 0; step < 100; ++step) {
    AddInPlace(total, to_rank.Pop());
    expected += step;
    to_loader.Push(Tensor());
  }
  loader.join();
  EXPECT_THAT(total.ToVector<float>(), ::testing::Each(expected));
}

INSTANTIATE_TEST_SUITE_P(Streams, LoaderTest, ::testing::Values(0, 1, 2));

TEST(ThreadsTest, TensorsOutliveTheThreadThatMadeThem) {
  std::vector<Tensor> made;
  std::thread([&] {
    for (int i = 0; i < 10; ++i) made.push_back(Full({3}, i));
  }).join();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(made[static_cast<size_t>(i)].ToVector<float>(),
                ::testing::Each(i));
  }
  // Dropped here, and on two threads at once.
  std::vector<Tensor> others(made.begin() + 3, made.begin() + 6);
  std::vector<Tensor> more(made.begin() + 6, made.end());
  made.clear();
  std::thread a([&] { others.clear(); });
  std::thread b([&] { more.clear(); });
  a.join();
  b.join();
}

TEST(ThreadsTest, ARanksTensorsMayBeDroppedAnywhere) {
  RankContext rank({.world_rank = 1});
  const RankContextScope scope(&rank);
  std::optional<std::thread> dropper;
  for (int i = 0; i < 50; ++i) {
    if (dropper.has_value()) dropper->join();
    dropper.emplace([tensor = Full({100}, i)]() mutable { tensor = Tensor(); });
    const Tensor other = Full({100}, -i);
    EXPECT_THAT(other.ToVector<float>(), ::testing::Each(-i));
  }
  dropper->join();
  rank.allocator().TakeReturned();
  EXPECT_EQ(rank.allocator().stats().current_total, 0);
}

// Any other thread would race for the owner's lists.
TEST(ThreadsTest, MemoryComesBackOnItsOwnersThread) {
  RankContext rank({.world_rank = 1});
  const RankContextScope scope(&rank);
  Tensor tensor = Ones({100});
  const Allocator& allocator = rank.allocator();
  const int64_t leased = allocator.stats().current_total;
  std::thread([&] { tensor = Tensor(); }).join();
  EXPECT_EQ(allocator.stats().current_total, leased);
  rank.allocator().TakeReturned();
  EXPECT_EQ(allocator.stats().current_total, leased - 400);
}

TEST(ThreadsDeathTest, ARanksTensorsAreUsedOnItsThreadOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        RankContext rank({.world_rank = 5});
        const RankContextScope scope(&rank);
        const Tensor mine = Ones({2});
        std::thread([&] { Add(mine, mine); }).join();
      },
      "f32\\[2\\] on cpu is used on another thread than that of rank 5");
  EXPECT_DEATH(
      {
        RankContext rank({.world_rank = 5});
        const RankContextScope scope(&rank);
        const Tensor mine = Ones({2});
        std::thread([&] { ZeroInPlace(mine); }).join();
      },
      "f32\\[2\\] on cpu is used on another thread than that of rank 5");
  EXPECT_DEATH(
      {
        RankContext rank({.world_rank = 5});
        const RankContextScope scope(&rank);
        const Tensor mine = Ones({2});
        std::thread([&] {
          const RankContextScope also(&rank);
          Ones({2});
        }).join();
      },
      "in the context of another thread's rank 5");
}

// Tensors that ranks may share must not be written.
struct Write {
  std::string name;  ///< In the message.
  std::function<void(const Tensor&)> run;
};

class SharedBatchDeathTest : public ::testing::TestWithParam<Write> {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::thread([&] { batch_ = FromValues<float>({4}, Batch(3)); }).join();
  }

  Tensor batch_;  // Made by a thread that has ended.
};

TEST_P(SharedBatchDeathTest, IsNotWrittenByARank) {
  const Write& write = GetParam();
  RankContext rank({.world_rank = 1});
  const RankContextScope scope(&rank);
  const std::string refusal =
      write.name +
      ": f32\\[4\\] on cpu was made by another thread, which may "
      "give it to several ranks: nobody writes to it any more; write to a "
      "Clone of it\n  at rank 1";
  EXPECT_DEATH(write.run(batch_), refusal);
  // A view outside of the graph is refused, too.
  EXPECT_DEATH(write.run(View(batch_.Detach(), {4})), refusal);
  EXPECT_FALSE(batch_.IsUnique());
  write.run(Clone(batch_));
  EXPECT_THAT(batch_.ToVector<float>(), ::testing::ElementsAreArray(Batch(3)));
}

TEST_P(SharedBatchDeathTest, IsNotWrittenByItsMakerOnceItWasRead) {
  const Write& write = GetParam();
  const Tensor batch = Ones({4});
  write.run(batch.Detach());
  const auto read_and_write = [&] {
    std::thread([&] {
      RankContext rank({.world_rank = 1});
      const RankContextScope scope(&rank);
      Sum(batch);
    }).join();
    write.run(batch.Detach());
  };
  EXPECT_DEATH(read_and_write(),
               write.name +
                   ": f32\\[4\\] on cpu was given to another thread, "
                   "which may read it now: make a new tensor for new values");
}

INSTANTIATE_TEST_SUITE_P(
    All, SharedBatchDeathTest,
    ::testing::ValuesIn(std::vector<Write>{
        {"add_in_place", [](const Tensor& t) { AddInPlace(t, Ones({4})); }},
        {"scale_in_place", [](const Tensor& t) { MulInPlace(t, 2.0); }},
        {"mul_in_place", [](const Tensor& t) { MulInPlace(t, Ones({4})); }},
        {"copy_in_place", [](const Tensor& t) { CopyInPlace(t, Ones({4})); }},
        {"fill_in_place", [](const Tensor& t) { ZeroInPlace(t); }},
        {"set_requires_grad",
         [](const Tensor& t) { Tensor(t).set_requires_grad(true); }},
    }),
    [](const auto& info) { return info.param.name; });

// All ranks that share it would add to its gradient.
TEST(ThreadsDeathTest, ALeafOfAnotherThreadGetsNoGradient) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Tensor leaf;
  std::thread([&] { leaf = Ones({4}).set_requires_grad(true); }).join();
  RankContext rank({.world_rank = 1});
  const RankContextScope scope(&rank);
  EXPECT_DEATH(Sum(leaf),
               "the gradient of a leaf: f32\\[4\\] on cpu was made by another");
  EXPECT_EQ(Sum(leaf.Detach()).ToVector<float>()[0], 4);
}

// A leaf below the thread's own computation gets no gradient either. Its graph
// is not run, because several ranks would release its nodes.
TEST(ThreadsDeathTest, AGraphOfAnotherThreadIsNotRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Tensor computed;
  std::thread([&] {
    computed = Mul(Ones({4}).set_requires_grad(true), 2.0);
  }).join();
  RankContext rank({.world_rank = 1});
  const RankContextScope scope(&rank);
  EXPECT_DEATH(Backward(Sum(computed)).IgnoreError(),
               "the gradient of a leaf: f32\\[4\\] on cpu was made by another");
  EXPECT_EQ(Sum(computed.Detach()).ToVector<float>()[0], 8);
}

}  // namespace
}  // namespace crosshatch
