// SPDX-License-Identifier: Apache-2.0
// Tensors that go from thread to thread: made by a data loader's, read and
// dropped by ranks'.
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

// What users write.
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
  // By way of a strided read and a product.
  const Tensor square = MatMul(View(batch, {2, 2}), Ones({2, 2}));
  return Sum(Transpose(square, 0, 1)).ToVector<float>()[0];
}

// 0: the rank's stream runs inline.
class LoaderTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(LoaderTest, FeedsARank) {
  constexpr int kSteps = 200;
  Queue queue;
  std::thread loader([&] {
    for (int step = 0; step < kSteps; ++step) {
      // Some of what the loader makes it drops itself.
      const Tensor scaled = Mul(FromValues<float>({4}, Batch(step)), 2.0);
      queue.Push(Add(scaled, Full({4}, 1)));
    }
  });
  RankContext rank({.adversarial_seed = GetParam()});
  const RankContextScope scope(&rank);
  const Tensor weight = Ones({4}).set_requires_grad(true);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor batch = queue.Pop();
    EXPECT_EQ(SumOfBatch(batch), 2 * (2 * 3 + 4));
    ASSERT_TRUE(Backward(Sum(Mul(weight, batch))).ok());
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

// The queue's work may be far behind when the last reference goes.
TEST_P(LoaderTest, MayReuseMemoryOnlyAfterTheRanksWork) {
  RankContext rank({.adversarial_seed = GetParam()});
  const RankContextScope scope(&rank);
  Queue to_loader, to_rank;
  std::thread loader([&] {
    for (int step = 0; step < 100; ++step) {
      // Of one size: what comes back is what the next one would lie in.
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
        std::thread([&] {
          const RankContextScope also(&rank);
          Ones({2});
        }).join();
      },
      "in the context of another thread's rank 5");
}

}  // namespace
}  // namespace crosshatch
