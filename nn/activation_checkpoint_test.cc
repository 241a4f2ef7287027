// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/activation_checkpoint.h"

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/random.h"
#include "crosshatch/nn/layers/dropout.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two inputs and two outputs, with noise that depends on the elements and on
/// the step.
class Noisy final : public Module {
 public:
  int runs = 0;
  int step = 0;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    ++runs;
    const Tensor noise = Empty({4, 3});
    FillUniform(noise, 7, "noise", 0.5, 1.5,
                static_cast<uint64_t>(Captured(step)));
    const Tensor up = up_.Forward(Mul(inputs[0], noise));
    const Tensor x = training() ? Gelu(up) : Tanh(up);
    return {x, Mul(Tanh(inputs[1]), noise)};
  }

 private:
  Linear& up_ = Make<Linear>("up", 3, 5);
};

class Tree final : public Module {
 public:
  Noisy& noisy() { return noisy_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList once = noisy_.Call({inputs[0], inputs[0]});
    const TensorList twice = noisy_.Call({once[1], inputs[0]});
    return {Add(Sum(Mul(once[0], twice[0])), Sum(twice[1]))};
  }

 private:
  Noisy& noisy_ = Make<Noisy>("noisy");
};

TEST(CheckpointTest, KeepsTheBitsOfAModuleThatRunsTwice) {
  std::vector<float> gradients[2];
  std::vector<std::string> names[2];
  for (const bool checkpointed : {false, true}) {
    Tree tree;
    for (const NamedParameter& named : tree.NamedParameters()) {
      names[checkpointed].push_back(named.name);
    }
    ASSERT_TRUE(tree.Materialize({.seed = 1}).ok());
    if (checkpointed) {
      ASSERT_TRUE(CheckpointActivations(tree.noisy()).ok());
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

/// A layer, noise with a state of its own and a Dropout, in a part that may be
/// checkpointed again.
class Stateful final : public Module {
 public:
  Noisy& noisy() { return noisy_; }
  Dropout& drop() { return drop_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const TensorList both = noisy_.Call({inputs[0], inputs[0]});
    return {Tanh(up_.Forward(drop_.Forward(Gelu(both[0]))))};
  }

 private:
  Noisy& noisy_ = Make<Noisy>("noisy");
  Dropout& drop_ = Make<Dropout>("drop", 0.5);
  Linear& up_ = Make<Linear>("up", 5, 5);
};

/// State of a module that a program may change between forwards.
struct State {
  uint64_t seed;
  uint64_t step;
  bool training;
};

struct Change {
  const char* name;
  /// States of the first forward, of the second, and of their backwards.
  State states[3];
};

class CheckpointStateTest
    : public ::testing::TestWithParam<std::tuple<Change, int>> {};

TEST_P(CheckpointStateTest, IsThatOfTheForward) {
  const auto& [change, checkpointed] = GetParam();
  std::vector<std::vector<float>> gradients[2];
  for (const bool with : {false, true}) {
    Stateful model;
    ASSERT_TRUE(model.Materialize({.seed = 1}).ok());
    if (with) {
      // Compare the model, the noise and the Dropout bit by bit.
      Module* const parts[] = {&model, &model.noisy(), &model.drop()};
      for (int i = 0; i < 3; ++i) {
        if ((checkpointed >> i & 1) == 0) continue;
        ASSERT_TRUE(CheckpointActivations(*parts[i]).ok());
      }
    }
    const auto set = [&](const State& state) {
      model.noisy().step = static_cast<int>(state.step);
      SetDropoutStep(model, state.seed, state.step);
      model.set_training(state.training);
    };
    const Tensor x = Ones({4, 3}).set_requires_grad(true);
    std::vector<Tensor> losses;
    for (int i = 0; i < 2; ++i) {
      set(change.states[i]);
      losses.push_back(Sum(model.Forward(Tanh(x))));
    }
    set(change.states[2]);
    for (int i = 1; i >= 0; --i) {
      ASSERT_TRUE(Backward(losses[static_cast<size_t>(i)]).ok());
      gradients[with].push_back(x.grad().ToVector<float>());
      for (Parameter* p : model.Parameters()) {
        gradients[with].push_back(p->grad().ToVector<float>());
      }
    }
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckpointStateTest,
    ::testing::Combine(
        ::testing::Values(
            Change{"nothing", {{1, 1, true}, {1, 1, true}, {1, 1, true}}},
            Change{"step", {{1, 1, true}, {1, 2, true}, {1, 3, true}}},
            Change{"seed", {{1, 1, true}, {2, 1, true}, {3, 1, true}}},
            Change{"training_ends",
                   {{1, 1, true}, {1, 2, true}, {1, 2, false}}},
            Change{"training_begins",
                   {{1, 1, false}, {1, 1, false}, {1, 1, true}}},
            Change{"alternates", {{1, 1, true}, {1, 2, false}, {1, 3, true}}}),
        ::testing::Range(1, 8)),
    [](const auto& info) {
      return absl::StrCat(std::get<0>(info.param).name, "_",
                          std::get<1>(info.param));
    });

TEST(CheckpointTest, RefusesASecondTime) {
  Tree tree;
  ASSERT_TRUE(CheckpointActivations(tree.noisy()).ok());
  ASSERT_TRUE(CheckpointActivations(tree).ok());
  const absl::Status status = CheckpointActivations(tree.noisy());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("noisy is checkpointed already"));
}

TEST(CheckpointDeathTest, NamesAModuleThatIsGoneBeforeItsBackward) {
  auto tree = std::make_unique<Tree>();
  ASSERT_TRUE(CheckpointActivations(tree->noisy()).ok());
  ASSERT_TRUE(tree->Materialize({.seed = 1}).ok());
  const Tensor out = tree->Forward(Ones({4, 3}));
  tree.reset();
  EXPECT_DEATH((void)Backward(Sum(out)),
               "module noisy .Noisy. again .Checkpoint., and the module was "
               "destroyed since");
}

TEST(CheckpointTest, ChecksAPredicate) {
  Tree tree;
  std::vector<std::string> asked;
  EXPECT_EQ(CheckpointActivationsIf(
                tree, [](const Module&, const std::string&) { return false; })
                .code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(CheckpointActivationsIf(tree, [&](const Module& module,
                                                const std::string& name) {
                asked.push_back(name);
                return std::string(module.type_name()) == "Noisy";
              }).ok());
  EXPECT_THAT(asked, ElementsAre("", "noisy", "noisy.up"));
  ASSERT_TRUE(tree.Materialize({.seed = 1}).ok());
  const Tensor x = Ones({4, 3}).set_requires_grad(true);
  ASSERT_TRUE(Backward(tree.Forward(x)).ok());
  EXPECT_EQ(tree.noisy().runs, 4);
  // A checkpointed module is an error, and the others stay unchanged.
  const auto all = [](const Module&, const std::string&) { return true; };
  EXPECT_EQ(CheckpointActivationsIf(tree, all).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(CheckpointActivations(tree).ok());
}

/// Computes x * buffer. If `writes`, adds 1 to the buffer first.
class Scaled final : public Module {
 public:
  explicit Scaled(bool writes) : writes_(writes) {}

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

Tensor ScaledInput() { return Ones({2}).set_requires_grad(true); }

TEST(CheckpointTest, ReadsBuffers) {
  Scaled module(/*writes=*/false);
  ASSERT_TRUE(module.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(module).ok());
  for (const float factor : {3.0f, 4.0f}) {
    const Tensor x = ScaledInput();
    ASSERT_TRUE(Backward(Sum(module.Forward(x))).ok());
    EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(factor, factor));
    module.Raise();
  }
}

TEST(CheckpointDeathTest, DoesNotWriteBuffers) {
  Scaled writes(/*writes=*/true);
  ASSERT_TRUE(writes.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(writes).ok());
  EXPECT_DEATH((void)writes.Forward(ScaledInput()),
               "buffer factor is written by a forward that is recomputed");
  Scaled reads(/*writes=*/false);
  ASSERT_TRUE(reads.Materialize({}).ok());
  ASSERT_TRUE(CheckpointActivations(reads).ok());
  const Tensor loss = Sum(reads.Forward(ScaledInput()));
  reads.Raise();
  EXPECT_DEATH((void)Backward(loss).ok(),
               "buffer factor was written between a forward and its "
               "recomputation");
}

}  // namespace
}  // namespace crosshatch::nn
