// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;

/// Computes x * buffer. If `writes`, adds 1 to the buffer first.
class Scaled final : public Module {
 public:
  explicit Scaled(bool writes) : writes_(writes) {}
  const char* type_name() const override { return "Scaled"; }

  Buffer& factor_ = MakeBuffer("factor", {2}, init::Constant(3));

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    if (writes_) Raise();
    return {inputs[0] * factor_.data()};
  }

 public:
  void Raise() {
    const NoGrad no_grad;
    AddInPlace(factor_.data(), Ones({2}));
  }

 private:
  const bool writes_;
};

Tensor Input() { return Ones({2}).set_requires_grad(true); }

TEST(HoldBuffersTest, ARecomputedPartReadsBuffers) {
  Scaled module(/*writes=*/false);
  ASSERT_TRUE(module.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(module).ok());
  for (const float factor : {3.0f, 4.0f}) {
    const Tensor x = Input();
    ASSERT_TRUE(Backward(Sum(module.Forward(x))).ok());
    EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(factor, factor));
    module.Raise();
  }
}

TEST(HoldBuffersDeathTest, AndDoesNotWriteThem) {
  Scaled writes(/*writes=*/true);
  ASSERT_TRUE(writes.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(writes).ok());
  EXPECT_DEATH((void)writes.Forward(Input()),
               "buffer factor is written by a forward that is recomputed");
  Scaled reads(/*writes=*/false);
  ASSERT_TRUE(reads.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(reads).ok());
  const Tensor loss = Sum(reads.Forward(Input()));
  reads.Raise();
  EXPECT_DEATH((void)Backward(loss).ok(),
               "buffer factor was written between a forward and its "
               "recomputation");
}

}  // namespace
}  // namespace crosshatch::nn
