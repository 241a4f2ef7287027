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

// Returns x * x * x and x * x, which both have a gradient.
class PowersOp final : public Op {
 public:
  static constexpr OpInfo kInfo = {"powers"};
  const OpInfo& info() const override { return kInfo; }
  TensorList Forward(TensorSpan inputs) const override {
    NoGrad no_grad;
    const Tensor square = Mul(inputs[0], inputs[0]);
    return {Mul(square, inputs[0]), square};
  }
  std::shared_ptr<Node> Differentiate(TensorSpan inputs,
                                      TensorSpan outputs) const override;
};

// The gradient of output 0 reads output 1, whose gradient is another.
class PowersNode final : public SavingNode<2> {
 public:
  PowersNode() : SavingNode<2>(PowersOp::kInfo) { set_num_outputs(2); }
  void Backward(TensorSpan grads, GradientSlots& slots) override {
    Tensor sum;
    if (grads[0].defined()) sum = Mul(grads[0], Mul(Saved(1), 3.0));
    if (grads[1].defined()) {
      const Tensor by_square = Mul(grads[1], Mul(Saved(0), 2.0));
      sum = sum.defined() ? Add(sum, by_square) : by_square;
    }
    slots.Put(0, sum);
  }
};

std::shared_ptr<Node> PowersOp::Differentiate(TensorSpan inputs,
                                              TensorSpan outputs) const {
  auto node = std::make_shared<PowersNode>();
  node->Save(0, inputs[0]);
  node->SaveOutput(1, outputs[1], 1);
  return node;
}

TEST(SavingNodeTest, EachOfSeveralOutputsHasAGradient) {
  const std::vector<TestInput> input = {RandomInput({3, 2}, /*seed=*/1)};
  const auto both = [](TensorSpan in) {
    const TensorList powers = Apply(PowersOp(), in);
    return Add(powers[0], Mul(powers[1], 5.0));
  };
  const auto first = [](TensorSpan in) { return Apply(PowersOp(), in)[0]; };
  const auto second = [](TensorSpan in) { return Apply(PowersOp(), in)[1]; };
  for (const TensorFunction& run :
       {TensorFunction(both), TensorFunction(first), TensorFunction(second)}) {
    EXPECT_TRUE(Gradcheck(run, input));
    EXPECT_TRUE(GradGradcheck(run, input));
  }
}

TEST(SavingNodeTest, AnOutputThatNobodyUsesHasNoGradient) {
  const Tensor x =
      FromValues<float>({2}, std::vector<float>{1, 2}).set_requires_grad(true);
  const TensorList powers = Apply(PowersOp(), {&x, 1});
  ASSERT_TRUE(Backward(Sum(powers[0])).ok());
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(3, 12));
  const TensorList again = Apply(PowersOp(), {&x, 1});
  x.set_grad(Tensor());
  ASSERT_TRUE(Backward(Sum(again[1])).ok());
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(2, 4));
}

}  // namespace
}  // namespace crosshatch
