// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/recompute.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

Tensor Varied(ShapeView sizes, int salt) {
  std::vector<float> values(static_cast<size_t>(NumElements(sizes)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>((static_cast<int>(i) * 37 + salt * 101) % 211) /
            97.0f -
        1.0f;
  }
  return FromValues<float>(sizes, absl::MakeConstSpan(values));
}

Tensor Leaf(ShapeView sizes, int salt) {
  return Varied(sizes, salt).set_requires_grad(true);
}

std::vector<float> Bits(const Tensor& a) { return a.ToVector<float>(); }

// A part: down(gelu(up(x))).
struct Part {
  Tensor up = Leaf({7, 3}, 1);
  Tensor down = Leaf({3, 7}, 2);
  int runs = 0;

  TensorList Forward(TensorSpan inputs) {
    ++runs;
    return {Linear(Gelu(Linear(inputs[0], up)), down)};
  }
  Tensor Run(const Tensor& x, bool recomputed) {
    if (!recomputed) return Forward({x})[0];
    return Recomputed("part", {x},
                      [this](TensorSpan in) { return Forward(in); })[0];
  }
};

TEST(RecomputedTest, GivesTheSameBits) {
  std::vector<std::vector<float>> gradients[2];
  for (const bool recomputed : {false, true}) {
    Part part;
    const Tensor x = Leaf({4, 3}, 3);
    // A leaf as input, and a part that runs twice.
    const Tensor y = part.Run(Tanh(part.Run(x, recomputed)), recomputed);
    ASSERT_TRUE(Backward(Sum(Square(y))).ok());
    for (const Tensor& leaf : {x, part.up, part.down}) {
      gradients[recomputed].push_back(Bits(leaf.grad()));
    }
    EXPECT_EQ(part.runs, recomputed ? 4 : 2);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(RecomputedTest, HasSeveralInputsAndOutputs) {
  std::vector<std::vector<float>> gradients[2];
  for (const bool recomputed : {false, true}) {
    const Tensor a = Leaf({2, 3}, 1);
    const Tensor b = Leaf({2, 3}, 2);
    const auto forward = [](TensorSpan in) -> TensorList {
      EXPECT_FALSE(in[2].defined());
      // The first output is an input itself; the third is not used later.
      const Tensor product = Mul(in[0], in[1]);
      return {in[0], Exp(product), Square(in[1])};
    };
    const TensorList inputs = {Tanh(a), b, Tensor()};
    const TensorList outputs =
        recomputed ? Recomputed("three", inputs, forward) : forward(inputs);
    ASSERT_TRUE(Backward(Sum(Mul(outputs[0], outputs[1]))).ok());
    gradients[recomputed] = {Bits(a.grad()), Bits(b.grad())};
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(RecomputedTest, NestsAtAnyDepth) {
  std::vector<std::vector<float>> gradients[2];
  for (const bool recomputed : {false, true}) {
    Part first;
    Part second;
    int runs = 0;
    const Tensor x = Leaf({4, 3}, 3);
    const auto outer = [&](TensorSpan in) -> TensorList {
      ++runs;
      const Tensor h = Tanh(first.Run(Square(in[0]), recomputed));
      return {Exp(second.Run(h, recomputed))};
    };
    const Tensor start = Tanh(x);
    const Tensor y =
        recomputed ? Recomputed("outer", {start}, outer)[0] : outer({start})[0];
    ASSERT_TRUE(Backward(Sum(Square(y))).ok());
    for (const Tensor& leaf : {x, first.up, first.down, second.up}) {
      gradients[recomputed].push_back(Bits(leaf.grad()));
    }
    EXPECT_EQ(runs, recomputed ? 2 : 1);
    // In forward, within the outer part's second run, and for themselves.
    EXPECT_EQ(first.runs, recomputed ? 3 : 1);
    EXPECT_EQ(second.runs, recomputed ? 3 : 1);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(RecomputedTest, DetectsTheSecondRun) {
  std::vector<bool> seen;
  const Tensor x = Leaf({2}, 1);
  const auto inner = [&](TensorSpan in) -> TensorList {
    seen.push_back(InRecomputation());
    return {Exp(in[0])};
  };
  const auto outer = [&](TensorSpan in) {
    return Recomputed("inner", {Exp(in[0])}, inner);
  };
  const Tensor y = Recomputed("outer", {x}, outer)[0];
  EXPECT_FALSE(InRecomputation());
  ASSERT_TRUE(Backward(Sum(y)).ok());
  EXPECT_FALSE(InRecomputation());
  // The inner part's second run requests its input, and the outer part's second
  // run, which computes that, runs the inner one once, too.
  EXPECT_EQ(seen, (std::vector<bool>{false, true, true}));
}

TEST(RecomputedTest, WithoutAGraphRunsOnce) {
  Part part;
  const NoGrad no_grad;
  EXPECT_FALSE(part.Run(Varied({4, 3}, 3), true).requires_grad());
  EXPECT_EQ(part.runs, 1);
}

TEST(RecomputedTest, RunsAgainForEachBackwardOfAKeptGraph) {
  Part part;
  const Tensor loss = Sum(part.Run(Varied({4, 3}, 3), true));
  ASSERT_TRUE(Backward(loss, {.retain_graph = true}).ok());
  const std::vector<float> once = Bits(part.up.grad());
  EXPECT_EQ(part.runs, 2);
  part.up.set_grad(Tensor());
  ASSERT_TRUE(Backward(loss).ok());
  EXPECT_EQ(Bits(part.up.grad()), once);
  EXPECT_EQ(part.runs, 3);
}

TEST(RecomputedTest, HasGradientsOfGradients) {
  std::vector<float> second[2];
  for (const bool recomputed : {false, true}) {
    Part part;
    const Tensor x = Leaf({4, 3}, 3);
    const Tensor y = Sum(Square(Tanh(part.Run(Tanh(x), recomputed))));
    const TensorList gradients =
        Gradients(y, {x, part.down}, {.create_graph = true}).value();
    EXPECT_FALSE(x.grad().defined());
    ASSERT_TRUE(
        Backward(Add(Sum(Square(gradients[0])), Sum(Square(gradients[1]))))
            .ok());
    second[recomputed] = Bits(part.up.grad());
  }
  EXPECT_EQ(second[0], second[1]);
}

// Returns the peak for a chain of `parts`: inputs [16, 8], 32 in the middle.
int64_t PeakOfActivations(int parts, bool recomputed) {
  RankContext& context = RankContext::Current();
  const Tensor up = Leaf({32, 8}, 1);
  const Tensor down = Leaf({8, 32}, 2);
  const auto activation = static_cast<size_t>(MemoryClass::kActivation);
  const int64_t before = context.allocator().stats().current[activation];
  context.allocator().ResetPeaks();
  const auto forward = [&](TensorSpan in) -> TensorList {
    return {Linear(Gelu(Linear(in[0], up)), down)};
  };
  {
    Tensor x = Varied({16, 8}, 3);
    for (int i = 0; i < parts; ++i) {
      x = recomputed ? Recomputed("part", {x}, forward)[0] : forward({x})[0];
    }
    EXPECT_TRUE(Backward(Sum(x)).ok());
  }
  EXPECT_EQ(context.allocator().stats().current[activation], before);
  return context.allocator().stats().peak[activation] - before;
}

TEST(RecomputedTest, HoldsTheInputsOfPartsAndTheActivationsOfOne) {
  constexpr int64_t kInput = 16 * 8 * 4;
  constexpr int64_t kSaved = kInput + 2 * 16 * 32 * 4;  // x, up(x), gelu
  const int64_t plain = PeakOfActivations(2, false);
  const int64_t less = PeakOfActivations(2, true);
  for (int parts = 3; parts <= 5; ++parts) {
    EXPECT_EQ(PeakOfActivations(parts, false), plain + (parts - 2) * kSaved);
    EXPECT_EQ(PeakOfActivations(parts, true), less + (parts - 2) * kInput);
  }
}

// Program state, here a factor, that has changed by the time of backward.
TEST(RecomputedTest, FindsWhatItCapturedInForward) {
  for (const bool retained : {false, true}) {
    std::vector<std::vector<float>> gradients[2];
    for (const bool recomputed : {false, true}) {
      float factor = 2;
      bool squares = true;
      const auto inner = [&](TensorSpan in) -> TensorList {
        const Tensor scaled = Exp(Mul(in[0], Captured(factor)));
        return {Captured(squares) ? Square(scaled) : scaled};
      };
      const auto run = [&](auto part, const Tensor& x) {
        return recomputed ? Recomputed("part", {x}, part)[0] : part({x})[0];
      };
      const auto outer = [&](TensorSpan in) -> TensorList {
        return {Mul(run(inner, Tanh(in[0])), Captured(factor))};
      };
      const Tensor x = Leaf({5}, 1);
      // Two forwards with different factors, both before their backwards.
      const Tensor first = Sum(run(outer, Tanh(x)));
      factor = 3;
      squares = false;
      const Tensor second = Sum(run(outer, Tanh(x)));
      factor = 5;
      squares = true;
      for (const Tensor& loss : {second, first}) {
        if (retained) {
          ASSERT_TRUE(Backward(loss, {.retain_graph = true}).ok());
          factor = 7;
        }
        ASSERT_TRUE(Backward(loss).ok());
        gradients[recomputed].push_back(Bits(x.grad()));
      }
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  }
}

TEST(RecomputedTest, NamesTheDifference) {
  const Tensor x = Leaf({2}, 1);
  int calls = 0;
  const auto other_count = [&](TensorSpan in) -> TensorList {
    return {++calls == 1 ? Exp(in[0]) : Exp(Exp(in[0]))};
  };
  EXPECT_DEATH(
      Backward(Sum(Recomputed("layers.3", {x}, other_count)[0])).IgnoreError(),
      HasSubstr("recomputing layers.3: it saves another number of tensors"));
  calls = 0;
  const auto other_shape = [&](TensorSpan in) -> TensorList {
    return {++calls == 1 ? Exp(in[0]) : Exp(Slice(in[0], 0, 0, 1))};
  };
  EXPECT_DEATH(
      Backward(Sum(Recomputed("layers.3", {x}, other_shape)[0])).IgnoreError(),
      HasSubstr("recomputing layers.3: what is saved as 0 was f32[2]"));
  calls = 0;
  const auto other_captures = [&](int first, int second) {
    const int count = ++calls == 1 ? first : second;
    for (int i = 0; i < count; ++i) Captured(i);
    return Exp(x);
  };
  const auto captures = [&](int first, int second) {
    Backward(Sum(Recomputed("layers.3", {x},
                            [&](TensorSpan) {
                              return TensorList{other_captures(first, second)};
                            })[0]))
        .IgnoreError();
  };
  EXPECT_DEATH(captures(1, 2), HasSubstr("recomputing layers.3: it captures as "
                                         "1 what it did not capture"));
  EXPECT_DEATH(captures(2, 1), HasSubstr("recomputing layers.3: it captures "
                                         "another number of values"));
  const auto changed_input = [&] {
    const Tensor input = Square(x);
    const Tensor y = Sum(Recomputed("layers.3", {input}, [](TensorSpan in) {
      return TensorList{Exp(in[0])};
    })[0]);
    MulInPlace(input, 2);
    Backward(y).IgnoreError();
  };
  EXPECT_DEATH(changed_input(), HasSubstr("layers.3: a tensor that its"));
}

// No node saves a bias, but the recomputed values depend on it.
TEST(RecomputedTest, NamesParametersThatNoNodeSaves) {
  const auto steps_before_backward = [](bool within_another) {
    const Tensor x = Leaf({2}, 1);
    const Tensor bias = Leaf({2}, 3);
    const auto forward = [&](TensorSpan in) -> TensorList {
      return {Exp(Add(in[0], bias))};
    };
    const auto outer = [&](TensorSpan in) {
      return Recomputed("layers.3.mlp", in, forward);
    };
    const Tensor loss =
        Sum(within_another ? Recomputed("layers.3", {x}, outer)[0]
                           : Recomputed("layers.3", {x}, forward)[0]);
    {
      const NoGrad no_grad;
      MulInPlace(bias, 2);
    }
    Backward(loss).IgnoreError();
  };
  EXPECT_DEATH(steps_before_backward(false), HasSubstr("changed in place"));
  EXPECT_DEATH(steps_before_backward(true), HasSubstr("changed in place"));
}

}  // namespace
}  // namespace crosshatch
