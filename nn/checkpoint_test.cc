// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/checkpoint.h"

#include <cstdint>
#include <string>
#include <vector>

#include "crosshatch/dtensor/random.h"
#include "crosshatch/nn/linear.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two inputs, two outputs, and noise that depends on elements and steps.
class Noisy final : public Module {
 public:
  Noisy() { RegisterModule("up", up_); }
  const char* type_name() const override { return "Noisy"; }

  int runs = 0;
  int step = 0;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    ++runs;
    const Tensor noise = Empty({4, 3});
    FillUniform(noise, 7, "noise", 0.5, 1.5, static_cast<uint64_t>(step));
    const Tensor x = Gelu(up_.Forward(Mul(inputs[0], noise)));
    return {x, Mul(Tanh(inputs[1]), noise)};
  }

 private:
  Linear up_{3, 5};
};

class Tree final : public Module {
 public:
  Tree() { RegisterModule("noisy", noisy_); }
  const char* type_name() const override { return "Tree"; }
  Noisy& noisy() { return noisy_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList once = noisy_.Call({inputs[0], inputs[0]});
    const TensorList twice = noisy_.Call({once[1], inputs[0]});
    return {Add(Sum(Mul(once[0], twice[0])), Sum(twice[1]))};
  }

 private:
  Noisy noisy_;
};

TEST(CheckpointTest, GivesTheSameBitsOfAModuleThatRunsTwice) {
  std::vector<float> gradients[2];
  std::vector<std::string> names[2];
  for (const bool checkpointed : {false, true}) {
    Tree tree;
    for (const NamedParameter& named : tree.NamedParameters()) {
      names[checkpointed].push_back(named.name);
    }
    ASSERT_TRUE(tree.Materialize({.seed = 1}).ok());
    if (checkpointed) {
      ASSERT_TRUE(Checkpoint(tree.noisy()).ok());
    }
    int hooks = 0;
    tree.noisy().AddPreHook([&](Module&, TensorList&) { ++hooks; });
    const Tensor x = Ones({4, 3}).set_requires_grad(true);
    ASSERT_TRUE(Backward(tree.Forward(x)).ok());
    Parameter* const weight = tree.Parameters()[0];
    gradients[checkpointed] = x.grad().ToVector<float>();
    const std::vector<float> of_weight = weight->grad().ToVector<float>();
    gradients[checkpointed].insert(gradients[checkpointed].end(),
                                   of_weight.begin(), of_weight.end());
    EXPECT_EQ(tree.noisy().runs, checkpointed ? 4 : 2);
    EXPECT_EQ(hooks, 2);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(names[0], names[1]);
}

TEST(CheckpointTest, RefusesASecondTime) {
  Tree tree;
  ASSERT_TRUE(Checkpoint(tree.noisy()).ok());
  ASSERT_TRUE(Checkpoint(tree).ok());
  const absl::Status status = Checkpoint(tree.noisy());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("noisy is checkpointed already"));
}

TEST(CheckpointTest, TakesThoseThatAPredicateWants) {
  Tree tree;
  std::vector<std::string> asked;
  EXPECT_EQ(CheckpointEach(
                tree, [](const Module&, const std::string&) { return false; })
                .code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(
      CheckpointEach(tree, [&](const Module& module, const std::string& name) {
        asked.push_back(name);
        return std::string(module.type_name()) == "Noisy";
      }).ok());
  EXPECT_THAT(asked, ElementsAre("", "noisy", "noisy.up"));
  ASSERT_TRUE(tree.Materialize({.seed = 1}).ok());
  const Tensor x = Ones({4, 3}).set_requires_grad(true);
  ASSERT_TRUE(Backward(tree.Forward(x)).ok());
  EXPECT_EQ(tree.noisy().runs, 4);
  // One that is checkpointed already: the others are left as they are.
  const auto all = [](const Module&, const std::string&) { return true; };
  EXPECT_EQ(CheckpointEach(tree, all).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Checkpoint(tree).ok());
}

}  // namespace
}  // namespace crosshatch::nn
