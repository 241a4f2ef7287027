// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tensor/ops/saving_node.h"

#include <memory>
#include <vector>

#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/gradcheck_testutil.h"
#include "crosshatch/tensor/op.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;

// Returns x * x and x * x * x, which both have a gradient.
class PowersOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"powers"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override {
    NoGrad no_grad;
    const Tensor square = Mul(inputs[0], inputs[0]);
    return {square, Mul(square, inputs[0])};
  }
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

class PowersNode final : public SavingNode<1> {
 public:
  PowersNode() : SavingNode<1>(PowersOp::kInfo) { set_num_outputs(2); }
  void Backward(TensorSpan grads, GradientSlots& slots) override {
    const Tensor x = Saved(0);
    Tensor sum;
    if (grads[0].defined()) sum = Mul(grads[0], Mul(x, 2.0));
    if (grads[1].defined()) {
      const Tensor by_cube = Mul(grads[1], Mul(Mul(x, x), 3.0));
      sum = sum.defined() ? Add(sum, by_cube) : by_cube;
    }
    slots.Put(0, sum);
  }
};

std::shared_ptr<Node> PowersOp::Differentiate(TensorSpan inputs,
                                              TensorSpan /*outputs*/) const {
  auto node = std::make_shared<PowersNode>();
  node->Save(0, inputs[0]);
  return node;
}

TEST(SavingNodeTest, EachOfSeveralOutputsHasAGradient) {
  const std::vector<TestInput> input = {RandomInput({3, 2}, /*seed=*/1)};
  const auto both = [](TensorSpan in) {
    const TensorList powers = Apply(PowersOp(), in);
    return Add(powers[0], Mul(powers[1], 5.0));
  };
  const auto second = [](TensorSpan in) { return Apply(PowersOp(), in)[1]; };
  for (const TensorFunction& run :
       {TensorFunction(both), TensorFunction(second)}) {
    EXPECT_TRUE(Gradcheck(run, input));
    EXPECT_TRUE(GradGradcheck(run, input));
  }
}

TEST(SavingNodeTest, AnOutputThatNobodyUsesHasNoGradient) {
  const Tensor x =
      FromValues<float>({2}, std::vector<float>{1, 2}).set_requires_grad(true);
  const TensorList powers = Apply(PowersOp(), {&x, 1});
  ASSERT_TRUE(Backward(Sum(powers[0])).ok());
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(2, 4));
  const TensorList again = Apply(PowersOp(), {&x, 1});
  x.set_grad(Tensor());
  ASSERT_TRUE(Backward(Sum(again[1])).ok());
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(3, 12));
}

}  // namespace
}  // namespace crosshatch
