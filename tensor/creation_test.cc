// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/creation.h"

#include <vector>

#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DType kAllDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                                kInt32,   kInt64,   kUInt16,   kBool};

// On the inline stream and on an adversarial one.
class CreationTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  RankContext rank_{{.adversarial_seed = GetParam()}};
  RankContextScope scope_{&rank_};
};

TEST_P(CreationTest, FillsEveryDType) {
  for (DType dtype : kAllDTypes) {
    EXPECT_THAT(Zeros({3, 5}, dtype).ToVector<float>(), Each(0)) << dtype;
    EXPECT_THAT(Ones({3, 5}, dtype).ToVector<float>(), Each(1)) << dtype;
    EXPECT_EQ(Ones({3, 5}, dtype).dtype(), dtype);
  }
  EXPECT_THAT(Full({3}, 2.5).ToVector<float>(), ElementsAre(2.5, 2.5, 2.5));
  EXPECT_THAT(Full({}, -7, kInt64).ToVector<int64_t>(), ElementsAre(-7));
}

TEST_P(CreationTest, CountsUp) {
  EXPECT_THAT(Arange(4).ToVector<float>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Arange(3, kInt64).ToVector<int64_t>(), ElementsAre(0, 1, 2));
  EXPECT_THAT(Arange(3, kUInt16).ToVector<int64_t>(), ElementsAre(0, 1, 2));
  EXPECT_THAT(Arange(0).ToVector<float>(), IsEmpty());
}

TEST_P(CreationTest, CopiesValuesAtOnce) {
  std::vector<double> values = {1, 2, 3, 4};
  const Tensor x = FromValues<double>({2, 2}, values);
  values.assign(4, -1);
  EXPECT_THAT(x.ToVector<double>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(FromValues<int32_t>({2}, {7, -7}).ToVector<int32_t>(),
              ElementsAre(7, -7));
  EXPECT_THAT(FromValues<int64_t>({1}, {int64_t{1} << 40}).ToVector<int64_t>(),
              ElementsAre(int64_t{1} << 40));
  EXPECT_THAT(FromValues<float>({}, {3}).ToVector<float>(), ElementsAre(3));
}

TEST_P(CreationTest, TakesAnySizes) {
  for (int64_t a : {0, 1, 3, 17}) {
    for (int64_t b : {0, 1, 5}) {
      const Tensor x = Full({a, b}, 4);
      EXPECT_EQ(x.numel(), a * b);
      EXPECT_THAT(x.ToVector<float>(), Each(4));
      EXPECT_TRUE(x.is_contiguous());
    }
  }
}

TEST_P(CreationTest, AllocatesInTheCurrentClassAndStream) {
  const MemoryClassScope memory(MemoryClass::kGradient);
  const StreamScope side(rank_.SideStream("side"));
  const Tensor x = Zeros({10});
  const Tensor none = Zeros({0});
  EXPECT_THAT(rank_.allocator().stats().current,
              ElementsAre(0, 40, 0, 0, 0, 0));
  EXPECT_THAT(x.ToVector<float>(), Each(0));
}

INSTANTIATE_TEST_SUITE_P(Streams, CreationTest, ::testing::Values(0, 1, 2, 3));

TEST(DryRunCreationTest, AccountsAndComputesNothing) {
  RankContext rank({.dry_run = true});
  const RankContextScope scope(&rank);
  const Tensor x = Full({1 << 20, 1 << 20}, 1);
  EXPECT_EQ(x.device(), Device::Meta());
  EXPECT_EQ(x.raw_data(), nullptr);
  EXPECT_EQ(x.Describe(), "f32[1048576, 1048576] on meta");
  const Tensor y = Arange(10);
  const Tensor z = FromValues<float>({2}, {1, 2});
  EXPECT_EQ(rank.allocator().stats().current_total,
            (int64_t{1} << 42) + 40 + 8);
}

TEST(DeferredTest, HasNoMemoryUntilItIsAttached) {
  RankContext rank({});
  const RankContextScope scope(&rank);
  const Tensor w = Deferred({2, 3}, kFloat32, "layers.0.wq.weight");
  EXPECT_EQ(w.device(), Device::Meta());
  EXPECT_EQ(w.storage()->bytes(), 24);
  EXPECT_EQ(rank.allocator().stats().current_total, 0);
  w.storage()->Attach(rank.allocator().Allocate(24, MemoryClass::kParameter,
                                                rank.compute_stream()),
                      rank.device());
  EXPECT_EQ(w.device(), Device::Cpu());
  EXPECT_NE(w.raw_data(), nullptr);
}

TEST(CreationDeathTest, RefusesMisuse) {
  EXPECT_DEATH(Empty({-1}), "a tensor of sizes \\[-1\\]");
  EXPECT_DEATH(Ones({-2, -3}), "a tensor of sizes \\[-2, -3\\]");
  EXPECT_DEATH(Deferred({-2, -3}, kFloat32, "wq"),
               "a tensor of sizes \\[-2, -3\\]");
  EXPECT_DEATH(Empty({int64_t{1} << 31, int64_t{1} << 31}),
               "sizes \\[2147483648, 2147483648\\] of f32 has more bytes");
  EXPECT_DEATH(FromValues<float>({3}, {1, 2}),
               "3 vs 2\\) elements of sizes \\[3\\]");
  EXPECT_DEATH(Deferred({2}, kFloat32, "wq").raw_data(), "memory of wq");
}

}  // namespace
}  // namespace crosshatch
