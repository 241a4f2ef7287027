// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/tensor.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NamedHandler : public TensorHandler {
 public:
  TensorList Dispatch(const Op&, TensorSpan) const override { return {}; }
  std::string Describe() const override { return "f32[4, 2]|S(0)"; }
  const Storage& memory() const override { return memory_; }
  bool AddsInPlace(const Tensor&) const override { return false; }

 private:
  const Storage memory_{0, "nobody"};
};

TEST(TensorTest, UndefinedByDefault) {
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor().Describe(), "an undefined tensor");
  EXPECT_FALSE(Tensor().IsUnique());
}

TEST(TensorTest, HasSizesStridesAndPlace) {
  const Tensor x = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(x.sizes(), ElementsAre(2, 3));
  EXPECT_THAT(x.strides(), ElementsAre(3, 1));
  EXPECT_EQ(x.size(0), 2);
  EXPECT_EQ(x.size(-1), 3);
  EXPECT_EQ(x.ndim(), 2);
  EXPECT_EQ(x.numel(), 6);
  EXPECT_EQ(x.dtype(), kFloat32);
  EXPECT_EQ(x.device(), Device::Cpu());
  EXPECT_TRUE(x.is_contiguous());
  EXPECT_FALSE(x.is_distributed());
  EXPECT_EQ(x.Describe(), "f32[2, 3] on cpu");
  EXPECT_EQ(x.data<float>()[5], 6);
}

TEST(TensorTest, CopiesAreHandlesToOneTensor) {
  const Tensor x = FromValues<float>({2}, {1, 2});
  const Tensor y = x;
  EXPECT_TRUE(x.SameAs(y));
  EXPECT_FALSE(x.SameAs(FromValues<float>({2}, {1, 2})));
}

TEST(TensorTest, ViewsShareTheStorage) {
  const Tensor x = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor t = MakeView(x.storage(), 0, {3, 2}, {1, 3}, kFloat32);
  EXPECT_THAT(t.ToVector<float>(), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_FALSE(t.is_contiguous());
  const Tensor row = MakeView(x.storage(), 3, {3}, {1}, kFloat32);
  EXPECT_THAT(row.ToVector<float>(), ElementsAre(4, 5, 6));
  EXPECT_EQ(row.data<float>(), x.data<float>() + 3);
  const Tensor backward = MakeView(x.storage(), 5, {6}, {-1}, kFloat32);
  EXPECT_THAT(backward.ToVector<float>(), ElementsAre(6, 5, 4, 3, 2, 1));
  const Tensor broadcast = MakeView(x.storage(), 1, {3, 1}, {0, 0}, kFloat32);
  EXPECT_THAT(broadcast.ToVector<float>(), ElementsAre(2, 2, 2));
  // A view without elements may begin outside of the storage.
  const Tensor none = MakeView(x.storage(), 100, {0, 7}, {7, 1}, kFloat32);
  EXPECT_EQ(none.raw_data(), nullptr);
  EXPECT_THAT(none.ToVector<float>(), IsEmpty());
}

TEST(TensorTest, IsUniqueOnlyIfNobodyElseSeesTheMemory) {
  Tensor x = Empty({4});
  EXPECT_TRUE(x.IsUnique());
  {
    const Tensor handle = x;
    EXPECT_FALSE(x.IsUnique());
  }
  EXPECT_TRUE(x.IsUnique());
  {
    const Tensor view = MakeView(x.storage(), 0, {2}, {1}, kFloat32);
    EXPECT_FALSE(x.IsUnique());
    EXPECT_FALSE(view.IsUnique());
  }
  EXPECT_TRUE(x.IsUnique());
  EXPECT_FALSE(Deferred({4}, kFloat32, "w").IsUnique());
  EXPECT_FALSE(MakeHandled(std::make_shared<NamedHandler>(), {4, 2}, kFloat32)
                   .IsUnique());
}

TEST(TensorTest, ToVectorConvertsEveryDType) {
  const auto fill = [](DType dtype, auto... values) {
    const Tensor x = Empty({int64_t{sizeof...(values)}}, dtype);
    auto* out = static_cast<std::byte*>(x.raw_data());
    ((std::memcpy(out, &values, sizeof(values)), out += sizeof(values)), ...);
    return x;
  };
  const Tensor bf16 = fill(kBFloat16, BFloat16(1.5f), BFloat16(-3.0f));
  EXPECT_THAT(bf16.ToVector<float>(), ElementsAre(1.5f, -3.0f));
  EXPECT_THAT(bf16.ToVector<double>(), ElementsAre(1.5, -3.0));
  EXPECT_THAT(bf16.ToVector<int32_t>(), ElementsAre(1, -3));
  const Tensor f16 = fill(kFloat16, Float16(0.25f), Float16(7.0f));
  EXPECT_THAT(f16.ToVector<float>(), ElementsAre(0.25f, 7.0f));
  EXPECT_THAT(f16.ToVector<int64_t>(), ElementsAre(0, 7));
  EXPECT_THAT(fill(kUInt16, uint16_t{65535}).ToVector<int32_t>(),
              ElementsAre(65535));
  EXPECT_THAT(fill(kBool, true, false).ToVector<float>(), ElementsAre(1, 0));
  const int64_t big = (int64_t{1} << 60) + 1;
  EXPECT_THAT(fill(kInt64, big).ToVector<int64_t>(), ElementsAre(big));
  EXPECT_THAT(fill(kFloat64, 1e-300).ToVector<double>(), ElementsAre(1e-300));
  EXPECT_THAT(fill(kInt32, -7).ToVector<double>(), ElementsAre(-7.0));
}

TEST(TensorTest, ToVectorWaitsForTheCurrentStream) {
  RankContext rank({});
  const RankContextScope scope(&rank);
  const StreamScope side(rank.SideStream("side"));
  const Tensor x = Empty({1});
  rank.current_stream().Launch([out = x.data<float>()](KernelContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    *out = 3;
  });
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(3));
}

TEST(TensorTest, MemoryGoesWithTheLastReference) {
  const MemoryStats& stats = RankContext::Current().allocator().stats();
  const int64_t before = stats.current_total;
  {
    Tensor x = Empty({10});
    EXPECT_EQ(stats.current_total, before + 40);
    Tensor view = MakeView(x.storage(), 2, {3}, {1}, kFloat32);
    x = Tensor();
    EXPECT_EQ(stats.current_total, before + 40);
  }
  EXPECT_EQ(stats.current_total, before);
}

TEST(TensorTest, DistributedTensorsDescribeThemselves) {
  const Tensor x =
      MakeHandled(std::make_shared<NamedHandler>(), {4, 2}, kFloat32);
  EXPECT_TRUE(x.is_distributed());
  EXPECT_THAT(x.sizes(), ElementsAre(4, 2));
  EXPECT_EQ(x.device(), Device::Cpu());
  EXPECT_EQ(x.Describe(), "f32[4, 2]|S(0)");
}

TEST(TensorListTest, IsThatOfItsElements) {
  const Tensor x = Ones({1});
  const Tensor y = Ones({2});
  TensorList list = {x, y};
  const TensorSpan span = list;
  EXPECT_TRUE(span.front().SameAs(x) && span.back().SameAs(y));
  EXPECT_TRUE(list.front().SameAs(x) && list.back().SameAs(y));
  list[0] = y;
  EXPECT_TRUE(span[0].SameAs(y));
  EXPECT_EQ(TensorSpan(span.subspan(1)).size(), 1u);
  list = {};
  EXPECT_TRUE(list.empty() && TensorSpan().empty());
}

// Every access of either type, below, at and above the bounds.
TEST(TensorListDeathTest, NamesTheIndexAndTheSize) {
  const TensorList list = {Ones({1})};
  TensorList none;
  for (const auto& [fail, words] :
       std::vector<std::pair<std::function<Tensor()>, std::string>>{
           {[&] { return list[1]; }, "\\[1\\] of a list of 1 tensor"},
           {[&] { return TensorSpan(list)[2]; }, "\\[2\\] of a list of 1 "},
           {[&] { return list[size_t{0} - 1]; }, "\\[-1\\] of a list of 1 "},
           {[&] { return none[0]; }, "\\[0\\] of a list of 0 tensors"},
           {[&] { return none.front(); }, "\\[0\\] of a list of 0 "},
           {[&] { return none.back(); }, "\\[-1\\] of a list of 0 "},
           {[&] { return TensorSpan(none).front(); }, "\\[0\\] of a list of 0"},
           {[&] { return TensorSpan(none).back(); }, "\\[-1\\] of a list of 0"},
       }) {
    EXPECT_DEATH(fail(), words);
  }
}

TEST(TensorDeathTest, RefusesMisuse) {
  const Tensor x = FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_DEATH(x.data<double>(), "data<f64> of a tensor of f32");
  EXPECT_DEATH(Tensor().ToVector<float>(), "undefined");
  EXPECT_DEATH(x.size(2), "size\\(2\\) of a tensor of 2 dims: f32\\[2, 3\\]");
  EXPECT_DEATH(x.size(-3), "size\\(-3\\) of a tensor of 2 dims");
  EXPECT_DEATH(MakeView(x.storage(), 1, {2, 3}, {3, 1}, kFloat32),
               "a view of \\[2, 3\\] with strides \\[3, 1\\] at 1 leaves the "
               "24 bytes");
  EXPECT_DEATH(MakeView(x.storage(), 4, {6}, {-1}, kFloat32), "leaves");
  EXPECT_DEATH(MakeView(x.storage(), 0, {6}, {1}, kFloat64), "leaves");
  const Tensor handled =
      MakeHandled(std::make_shared<NamedHandler>(), {4, 2}, kFloat32);
  EXPECT_DEATH(handled.raw_data(), "the address of .*S\\(0\\)");
  EXPECT_DEATH(handled.ToVector<float>(), "S\\(0\\).*not all here");
}

}  // namespace
}  // namespace crosshatch
