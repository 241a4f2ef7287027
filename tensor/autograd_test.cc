// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/autograd.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/node.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

Tensor Values(ShapeView sizes, std::vector<double> values,
              bool requires_grad = false) {
  return FromValues<double>(sizes, absl::MakeConstSpan(values))
      .set_requires_grad(requires_grad);
}

Tensor Leaf(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return Values({n}, std::move(values), /*requires_grad=*/true);
}

absl::Status BackwardOfSum(const Tensor& a) { return Backward(Sum(a)); }

TEST(RunningNodeTest, IsTheNodeWhoseTurnItIs) {
  EXPECT_EQ(RunningNode(), nullptr);
  const Tensor x = Leaf({1, 2});
  const Tensor y = Exp(x);
  const Tensor z = Mul(y, y);
  const Node* const nodes[] = {GradEdge(z).node.get(), GradEdge(y).node.get(),
                               GradEdge(x).node.get()};
  std::vector<const Node*> seen;
  const auto see = [&seen] { seen.push_back(RunningNode()); };
  GradEdge(z).node->AddPreHook(see);
  GradEdge(y).node->AddPostHook([&] {
    see();
    // A backward pass within.
    const GradModeScope recording(true);
    const Tensor inner = Leaf({3});
    const Tensor sum = Sum(inner);
    const Node* const inner_node = GradEdge(sum).node.get();
    GradEdge(sum).node->AddPreHook(
        [inner_node] { EXPECT_EQ(RunningNode(), inner_node); });
    EXPECT_TRUE(Backward(sum).ok());
    see();
  });
  GradEdge(x).node->AddPostHook(see);
  ASSERT_TRUE(BackwardOfSum(z).ok());
  EXPECT_THAT(seen, ElementsAre(nodes[0], nodes[1], nodes[1], nodes[2]));
  EXPECT_EQ(RunningNode(), nullptr);
}

TEST(BackwardTest, AddsUpEveryUseOfALeaf) {
  const Tensor x = Leaf({1, 2, 3});
  ASSERT_TRUE(BackwardOfSum(Add(Mul(x, x), x)).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(3, 5, 7));
  ASSERT_TRUE(BackwardOfSum(x).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(4, 6, 8));
}

TEST(BackwardTest, GivesLeavesGradientsOfTheirOwn) {
  const Tensor x = Leaf({1, 2});
  const Tensor y = Leaf({3, 4});
  ASSERT_TRUE(BackwardOfSum(Add(x, y)).ok());
  {
    NoGrad no_grad;
    MulInPlace(x.grad(), 10);
  }
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(10, 10));
  EXPECT_THAT(y.grad().ToVector<double>(), ElementsAre(1, 1));
  EXPECT_EQ(x.grad().storage()->block().memory_class(), MemoryClass::kGradient);
}

TEST(BackwardTest, ReclassifiesAGradientThatItTakesOver) {
  const Tensor x = Leaf({1, 2});
  const int64_t gradients =
      RankContext::Current().allocator().stats().current[static_cast<size_t>(
          MemoryClass::kGradient)];
  ASSERT_TRUE(BackwardOfSum(Square(x)).ok());
  EXPECT_EQ(x.grad().storage()->block().memory_class(), MemoryClass::kGradient);
  EXPECT_EQ(
      RankContext::Current().allocator().stats().current[static_cast<size_t>(
          MemoryClass::kGradient)],
      gradients + 16);
}

TEST(BackwardTest, TakesTheGradientOfTheRoot) {
  const Tensor x = Leaf({1, 2});
  ASSERT_TRUE(Backward(Mul(x, 3.0), {.gradient = Values({2}, {1, 10})}).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(3, 30));
}

// The given gradient may be one that backward adds to, or a part of one.
TEST(BackwardTest, ReadsTheGivenGradientAsItWas) {
  const Tensor x = Leaf({1, 1, 1});
  const Tensor z = Leaf({1, 1, 1});
  const auto run = [&](const auto& part_of) {
    x.set_grad(Values({3}, {1, 1, 1}));
    z.set_grad(Tensor());
    const Tensor gradient = part_of(x.grad());
    ASSERT_TRUE(
        Backward(Add(Mul(x, 3.0), Add(x, z)), {.gradient = gradient}).ok());
    EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(5, 5, 5));
    EXPECT_THAT(z.grad().ToVector<double>(), ElementsAre(1, 1, 1));
  };
  run([](const Tensor& grad) { return grad; });
  run([](const Tensor& grad) { return grad.Detach(); });
  run([](const Tensor& grad) { return Expand(Slice(grad, 0, 1, 2), {3}); });
}

TEST(BackwardTest, RecordsNothingInNoGrad) {
  const Tensor x = Leaf({1});
  NoGrad no_grad;
  EXPECT_FALSE(Mul(x, 2.0).requires_grad());
}

TEST(BackwardTest, StopsAtDetach) {
  const Tensor x = Leaf({2});
  ASSERT_TRUE(BackwardOfSum(Mul(x, Mul(x, 5.0).Detach())).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(10));
}

TEST(BackwardTest, GivesTheGradientTheDTypeOfTheLeaf) {
  const Tensor x = Full({3}, 2, kBFloat16).set_requires_grad(true);
  ASSERT_TRUE(BackwardOfSum(Square(ToDType(x, kFloat32))).ok());
  EXPECT_EQ(x.grad().dtype(), kBFloat16);
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(4, 4, 4));
}

TEST(BackwardTest, RunsOnceUnlessTheGraphIsKept) {
  const Tensor x = Leaf({2});
  const Tensor y = Sum(Square(x));
  ASSERT_TRUE(Backward(y, {.retain_graph = true}).ok());
  ASSERT_TRUE(Backward(y).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(8));
  EXPECT_DEATH(Backward(y).IgnoreError(), "square: what it saved was released");
}

TEST(BackwardTest, RefusesWhatHasNoGradient) {
  EXPECT_DEATH(Backward(Ones({})).IgnoreError(),
               "requires no gradient: .*FullTensor and LocalTensor of one "
               "argument.* leave the graph");
  EXPECT_DEATH(Backward(Mul(Leaf({1, 2}), 2.0)).IgnoreError(),
               "needs a gradient");
  EXPECT_DEATH(Zeros({2}, kInt64).set_requires_grad(true),
               "only floating point");
}

TEST(BackwardTest, SurvivesADeepGraph) {
  const Tensor x = Leaf({1});
  {
    Tensor y = x;
    for (int i = 0; i < 100'000; ++i) y = Mul(Add(y, 1e-6), 1.0);
    ASSERT_TRUE(Backward(y).ok());
    EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(1));
    // The graph goes here.
  }
  Tensor dropped = x;
  for (int i = 0; i < 100'000; ++i) dropped = Mul(dropped, x);
}

TEST(BackwardTest, FreesWhatNodesSaved) {
  RankContext& context = RankContext::Current();
  const int64_t before = context.allocator().stats().current_total;
  {
    const Tensor x = Leaf({1, 2, 3, 4});
    Tensor y = Square(Exp(x));
    y = Sum(Add(y, Mul(y, y)));
    ASSERT_TRUE(Backward(y).ok());
    // x, its gradient, and the one element of y are left.
    EXPECT_EQ(context.allocator().stats().current_total - before, 32 + 32 + 8);
  }
  EXPECT_EQ(context.allocator().stats().current_total, before);
}

TEST(BackwardTest, ReturnsTheFirstErrorOfTheRank) {
  RankContext context((RankContextOptions()));
  const RankContextScope scope(&context);
  const Tensor x = Leaf({1, 2});
  const Tensor y = Sum(Square(x));
  bool ended = false;
  GradEdge(y).node->AddPreHook([&] {
    AtBackwardEnd([&] { ended = true; });
    context.Poison(absl::AbortedError("peer 3 died"));
  });
  EXPECT_EQ(Backward(y), absl::AbortedError("peer 3 died"));
  EXPECT_TRUE(ended);
  EXPECT_FALSE(InBackward());
  EXPECT_EQ(Backward(Sum(x)), absl::AbortedError("peer 3 died"));
  EXPECT_FALSE(x.grad().defined());
}

TEST(HookTest, RunInOrderAroundEachNode) {
  const Tensor x = Leaf({1});
  const Tensor y = Leaf({2});
  const Tensor a = Square(x);
  const Tensor b = Mul(a, y);
  std::vector<std::string> log;
  const auto watch = [&log](const Tensor& tensor, const std::string& name) {
    const std::shared_ptr<Node> node = GradEdge(tensor).node;
    node->AddPreHook([&log, name] { log.push_back("pre " + name); });
    node->AddPostHook([&log, name] { log.push_back("post " + name); });
    return node;
  };
  // The node of a leaf lives only while it is referenced.
  const auto x_node = watch(x, "x");
  const auto y_node = watch(y, "y");
  watch(a, "a");
  watch(b, "b");
  y_node->AddPostHook([&] {
    log.push_back(y.grad().defined() ? "y has a gradient" : "y has none");
    EXPECT_TRUE(InBackward());
    AtBackwardEnd([&] { log.push_back("end"); });
  });
  ASSERT_TRUE(Backward(b).ok());
  EXPECT_THAT(
      log, ElementsAre("pre b", "post b", "pre y", "post y", "y has a gradient",
                       "pre a", "post a", "pre x", "post x", "end"));
}

TEST(HookTest, MayRunABackwardOfItsOwn) {
  const Tensor x = Leaf({3});
  const Tensor y = Square(x);
  TensorList inner;
  GradEdge(y).node->AddPreHook([&] {
    GradModeScope grad_mode(true);
    const Tensor z = Leaf({5});
    inner = Gradients(Square(z), {z}).value();
  });
  ASSERT_TRUE(Backward(y).ok());
  EXPECT_THAT(inner[0].ToVector<double>(), ElementsAre(10));
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(6));
}

TEST(GradientsTest, DoNotAccumulateInLeaves) {
  const Tensor x = Leaf({1, 2});
  const Tensor w = Leaf({3, 4});
  const Tensor unused = Leaf({5});
  const Tensor a = Mul(x, w);
  const TensorList gradients =
      Gradients(Sum(Square(a)), {x, a, unused}).value();
  EXPECT_THAT(gradients[0].ToVector<double>(), ElementsAre(18, 64));
  EXPECT_THAT(gradients[1].ToVector<double>(), ElementsAre(6, 16));
  EXPECT_FALSE(gradients[2].defined());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(GradientsTest, RunOnlyWhatLeadsToTheInputs) {
  const Tensor x = Leaf({1});
  const Tensor y = Leaf({2});
  const Tensor side = Square(y);
  bool ran = false;
  GradEdge(side).node->AddPreHook([&] { ran = true; });
  const TensorList gradients = Gradients(Mul(x, side), {x}).value();
  EXPECT_THAT(gradients[0].ToVector<double>(), ElementsAre(4));
  EXPECT_FALSE(ran);
}

class RecordingSink final : public GradSink {
 public:
  RecordingSink(Tensor tensor, std::string name, std::vector<std::string>& log)
      : tensor_(std::move(tensor)), name_(std::move(name)), log_(log) {}
  GradDestination Acquire() override {
    log_.push_back("acquire " + name_);
    return {tensor_, std::exchange(written_, true)};
  }
  void Complete() override { log_.push_back("complete " + name_); }

 private:
  Tensor tensor_;
  std::string name_;
  std::vector<std::string>& log_;
  bool written_ = false;
};

TEST(GradSinkTest, GetsEachContributionAndThenTheEnd) {
  std::vector<std::string> log;
  const Tensor w = Ones({2, 2}).set_requires_grad(true);
  const Tensor bias = Ones({2}).set_requires_grad(true);
  const Tensor w_grad = Empty({2, 2});
  const Tensor bias_grad = Empty({2});
  SetGradSink(w, std::make_shared<RecordingSink>(w_grad, "w", log));
  SetGradSink(bias, std::make_shared<RecordingSink>(bias_grad, "bias", log));
  const Tensor x = Ones({3, 2});
  ASSERT_TRUE(Backward(Sum(Linear(Linear(x, w), w, bias))).ok());
  EXPECT_THAT(log, ElementsAre("acquire w", "acquire bias", "complete bias",
                               "acquire w", "complete w"));
  EXPECT_FALSE(w.grad().defined());
  // d/dw of the outer product 3 * 2, of the inner 3 * 2.
  EXPECT_THAT(w_grad.ToVector<double>(), ElementsAre(12, 12, 12, 12));
  EXPECT_THAT(bias_grad.ToVector<double>(), ElementsAre(3, 3));
}

TEST(GradSinkTest, ConvertsToTheDestinationsDType) {
  std::vector<std::string> log;
  const Tensor x = Full({2}, 3, kBFloat16).set_requires_grad(true);
  const Tensor destination = Empty({2}, kFloat32);
  SetGradSink(x, std::make_shared<RecordingSink>(destination, "x", log));
  ASSERT_TRUE(Backward(Sum(Add(Square(x), x))).ok());
  EXPECT_THAT(destination.ToVector<double>(), ElementsAre(7, 7));
}

TEST(GradSinkTest, IsCompletedWhereNothingWasContributed) {
  std::vector<std::string> log;
  const Tensor x = Leaf({3});
  SetGradSink(x, std::make_shared<RecordingSink>(Empty({1}), "x", log));
  const Tensor y = Mul(x, 1.0);
  FillInPlace(y, 2);
  ASSERT_TRUE(Backward(Add(Sum(y), Sum(Leaf({1})))).ok());
  EXPECT_THAT(log, ElementsAre("complete x"));
}

TEST(GradSinkTest, SavesTheTemporaryOfAWeightsGradient) {
  RankContext& context = RankContext::Current();
  const Tensor w = Ones({64, 64}).set_requires_grad(true);
  const Tensor x = Ones({1, 64});
  const Tensor destination = Empty({64, 64});
  std::vector<std::string> log;
  SetGradSink(w, std::make_shared<RecordingSink>(destination, "w", log));
  const Tensor loss = Sum(Linear(x, w));
  context.allocator().ResetPeaks();
  const int64_t before = context.allocator().stats().current_total;
  ASSERT_TRUE(Backward(loss).ok());
  EXPECT_LT(context.allocator().stats().peak_total - before, 64 * 64 * 4);
}

TEST(InPlaceTest, BecomesPartOfTheHistory) {
  const Tensor x = Leaf({1, 2});
  const Tensor y = Mul(x, 2.0);
  AddInPlace(y, Square(x));  // 2x + x^2
  MulInPlace(y, 3);
  ASSERT_TRUE(BackwardOfSum(y).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(12, 18));
}

TEST(InPlaceTest, CopyCutsTheOldHistory) {
  const Tensor x = Leaf({1, 2});
  const Tensor z = Leaf({5, 6});
  const Tensor y = Mul(x, 2.0);
  CopyInPlace(y, Mul(z, 7.0));
  ASSERT_TRUE(BackwardOfSum(y).ok());
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT(z.grad().ToVector<double>(), ElementsAre(7, 7));
}

TEST(InPlaceTest, OfALeafIsRefusedInGradMode) {
  const Tensor x = Leaf({1, 2});
  EXPECT_DEATH(MulInPlace(x, 2), "scale_in_place: a leaf");
  EXPECT_DEATH(MulInPlace(Slice(x, 0, 0, 1), 2), "scale_in_place: a leaf");
  NoGrad no_grad;
  MulInPlace(x, 2);
  EXPECT_THAT(x.ToVector<double>(), ElementsAre(2, 4));
}

TEST(InPlaceTest, OfASavedTensorIsAnError) {
  const Tensor x = Leaf({1, 2});
  const Tensor y = Exp(x);
  const Tensor z = Sum(Square(y));
  AddInPlace(y, x);
  EXPECT_DEATH(Backward(z).IgnoreError(), "square: .*changed in place");
  // A write through a view is one too.
  const Tensor a = Exp(x);
  const Tensor b = Sum(Square(a));
  ZeroInPlace(Slice(a, 0, 0, 1));
  EXPECT_DEATH(Backward(b).IgnoreError(), "square: .*changed in place");
}

TEST(InPlaceTest, ThroughAViewChangesTheBase) {
  const Tensor x = Leaf({1, 2, 3});
  const Tensor z = Leaf({10});
  const Tensor base = Mul(x, 2.0);
  const Tensor view = Slice(base, 0, 1, 2);
  CopyInPlace(view, Square(z));
  // base = (2 x0, z^2, 2 x2)
  ASSERT_TRUE(BackwardOfSum(Mul(base, Values({3}, {1, 10, 100}))).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(2, 0, 200));
  EXPECT_THAT(z.grad().ToVector<double>(), ElementsAre(200));
}

TEST(InPlaceTest, ThroughAViewIsSeenByOtherViews) {
  const Tensor x = Leaf({1, 2, 3, 4});
  const Tensor base = Mul(x, 1.0);
  const Tensor matrix = View(base, {2, 2});
  const Tensor column = Select(matrix, 1, 1);  // x1, x3
  const Tensor row = Select(matrix, 0, 1);     // x2, x3
  AddInPlace(column, column.Detach());
  MulInPlace(Transpose(matrix, 0, 1), 3);
  // row = 3 x2, 3 (x3 + 4)
  EXPECT_THAT(row.ToVector<double>(), ElementsAre(9, 24));
  ASSERT_TRUE(BackwardOfSum(Square(row)).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(0, 0, 54, 144));
}

TEST(InPlaceTest, OnTheBaseIsSeenByViewsMadeBefore) {
  const Tensor x = Leaf({1, 2});
  const Tensor base = Mul(x, 1.0);
  const Tensor view = Expand(Slice(base, 0, 0, 1), {3});
  MulInPlace(base, 5);
  ASSERT_TRUE(BackwardOfSum(view).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(15, 0));
}

TEST(InPlaceTest, FillsABufferPieceByPiece) {
  const Tensor x = Leaf({2});
  const Tensor buffer = Zeros({3}, kFloat64);
  for (int i = 0; i < 3; ++i) {
    CopyInPlace(Select(buffer, 0, i), Reshape(Pow(x, i + 1), {}));
  }
  EXPECT_TRUE(buffer.requires_grad());
  ASSERT_TRUE(BackwardOfSum(buffer).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(1 + 4 + 12));
}

TEST(InPlaceTest, MakesNoCycle) {
  RankContext& context = RankContext::Current();
  const int64_t before = context.allocator().stats().current_total;
  {
    const Tensor w = Leaf({3});
    const Tensor y = Mul(w, 2.0);
    const Tensor view = View(y, {1});
    AddInPlace(y, Mul(y, w));
    AddInPlace(view, Exp(view));
    const Tensor buffer = Zeros({1}, kFloat64);
    CopyInPlace(buffer, Mul(buffer, w));
  }
  EXPECT_EQ(context.allocator().stats().current_total, before);
}

// Without elements every shape is contiguous, and none shares elements.
TEST(BackwardTest, AddsUpGradientsOfNoElements) {
  for (const Shape& sizes : {Shape{3, 0}, Shape{0, 3}, Shape{0, 0}}) {
    const Tensor c = Ones(sizes, kFloat64).set_requires_grad(true);
    const Tensor h = Ones(sizes, kFloat64).set_requires_grad(true);
    for (int64_t dim : {0, 1}) {
      ASSERT_TRUE(
          Backward(Sum(Mul(c, Sum(Mul(h, c), {dim}, /*keepdim=*/true)))).ok());
      EXPECT_EQ(c.grad().sizes(), sizes);
      EXPECT_EQ(h.grad().sizes(), sizes);
    }
    ASSERT_TRUE(Backward(Sum(Mul(c, Sum(Expand(Sum(h), {3, 0}))))).ok());
  }
}

// The gradient of a sum is expanded: without elements it counts as contiguous,
// but must not be added to.
TEST(BackwardTest, AddsToExpandedGradientsOfNoElements) {
  for (const Shape& sizes : {Shape{3, 0}, Shape{0, 3}, Shape{0, 0}}) {
    const Tensor c = Ones(sizes, kFloat64).set_requires_grad(true);
    const std::vector<std::function<Tensor(const Tensor&)>> losses = {
        [](const Tensor& h) { return Sum(h); },
        [](const Tensor& h) { return Sum(Sum(h, {0})); },
        [](const Tensor& h) { return Sum(Sum(h, {1})); },
        [&](const Tensor& h) { return Sum(Mul(c, Sum(h))); },
        [&](const Tensor& h) { return Sum(Mul(c, Sum(h, {0}, true))); },
        [&](const Tensor& h) { return Sum(Mul(c, Sum(h, {1}, true))); },
    };
    for (const auto& loss : losses) {
      for (const bool is_leaf : {true, false}) {
        const Tensor leaf = Ones(sizes, kFloat64).set_requires_grad(true);
        // The second adds to the gradient of the first.
        for (int i = 0; i < 2; ++i) {
          const Tensor h = is_leaf ? leaf : Mul(leaf, 2.0);
          ASSERT_TRUE(Backward(loss(h)).ok());
          ASSERT_TRUE(Backward(Add(loss(h), loss(h))).ok());
        }
        EXPECT_EQ(leaf.grad().sizes(), sizes);
      }
    }
  }
}

TEST(InPlaceTest, HasGradientsInEveryForm) {
  EXPECT_TRUE(Gradcheck(
      [](TensorSpan in) {
        const Tensor a = Mul(in[0], 2.0);
        AddInPlace(a, in[1], 0.5);  // Broadcasts.
        MulInPlace(Select(a, 0, 1), -3);
        CopyInPlace(Slice(Transpose(a, 0, 1), 0, 1, 2), Square(in[2]));
        AddInPlace(View(a, {6}), Reshape(Exp(in[0]), {6}));
        FillInPlace(Select(Select(a, 0, 0), 0, 2), 4);
        return Square(a);
      },
      {RandomInput({2, 3}, 1), RandomInput({3}, 2), RandomInput({1, 2}, 3)}));
}

TEST(InPlaceTest, HasSecondDerivatives) {
  EXPECT_TRUE(GradGradcheck(
      [](TensorSpan in) {
        const Tensor a = Square(in[0]);
        AddInPlace(Slice(a, 0, 0, 2), Exp(in[1]));
        return Square(a);
      },
      {RandomInput({3}, 1), RandomInput({2}, 2)}));
}

TEST(CreateGraphTest, DifferentiatesGradientsThatAccumulated) {
  const Tensor x = Leaf({2});
  ASSERT_TRUE(Backward(Pow(x, 3), {.create_graph = true}).ok());
  ASSERT_TRUE(x.grad().requires_grad());
  const Tensor first = x.grad();  // 3 x^2
  x.set_grad(Tensor());
  ASSERT_TRUE(Backward(first).ok());
  EXPECT_THAT(x.grad().ToVector<double>(), ElementsAre(12));
}

TEST(CreateGraphTest, IsRefusedWhereAnOpCannot) {
  const Tensor logits = Values({1, 2}, {1, 2}, true);
  const Tensor target = Zeros({1}, kInt64);
  const Tensor loss = CrossEntropy(logits, target);
  EXPECT_DEATH(Backward(loss, {.create_graph = true}).IgnoreError(),
               "cross_entropy_backward .*differentiable once");
}

}  // namespace
}  // namespace crosshatch
