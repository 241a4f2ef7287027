// SPDX-License-Identifier: Apache-2.0

// Styles for the inputs and outputs of a module, by position and by name;
// ReplicateParallel; and a program's own style.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/dtensor/redistribute.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/near.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "crosshatch/tp/style_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::tp {
namespace {

using ::testing::HasSubstr;

// [5, 4] and [3, 4]: sizes that two and three ranks do not divide.
constexpr int64_t kRows = 5;
constexpr int64_t kMemory = 3;
constexpr int64_t kWidth = 4;

std::string LayoutText(const Tensor& t) {
  if (!t.defined()) return "undefined";
  return t.is_distributed() ? LayoutOf(t).ToString() : "plain";
}

// Computes (x [5, 4], memory [3, 4], scale [4]) -> (x * scale, memory * 2, x
// memory^T).
class Mixer final : public nn::Module, public nn::NamedInputs {
 public:
  std::vector<std::string> input_names() const override {
    return {"x", "memory", "scale"};
  }
  // The layouts of the inputs of the last forward.
  std::vector<std::string> layouts;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    layouts.clear();
    for (const Tensor& t : inputs) layouts.push_back(LayoutText(t));
    const Tensor scaled =
        inputs[2].defined() ? Mul(inputs[0], inputs[2]) : inputs[0];
    return {scaled, Mul(inputs[1], 2.0),
            MatMul(inputs[0], inputs[1], false, /*transpose_b=*/true)};
  }
};

TensorList Inputs() {
  return {SmallIntegers({kRows, kWidth}, 1),
          SmallIntegers({kMemory, kWidth}, 2), SmallIntegers({kWidth}, 3)};
}

// Returns this rank's rows of `whole`.
Tensor Part(const Tensor& whole, const DeviceMesh& mesh, int dim) {
  return Clone(LocalTensor(DistributeTensor(
      whole, mesh,
      Layout::Replicated(mesh.layout(), whole.ndim()).WithShard(0, dim))));
}

Values WholeOf(const TensorList& tensors) {
  Values values;
  for (const Tensor& t : tensors) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
}

TEST(PrepareModuleInputTest, BringsEachInputAndLeavesGaps) {
  Mixer one;
  const Values expected = WholeOf(one.Call(Inputs()));
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const TensorList whole = Inputs();
      // The rows of x and memory are split. The scale stays unchanged, by a
      // missing or an empty entry.
      const std::vector<PrepareInputOptions> ways = {
          {.input = {Shard(0), Shard(0)}, .desired = {Shard(0), Replicate()}},
          {.input = {Shard(0), Shard(0), std::nullopt},
           .desired = {Shard(0), Replicate(), std::nullopt}},
          {.input = {},
           .desired = {},
           .named = {{"memory", {.input = Shard(0), .desired = Replicate()}},
                     {"x", {.input = Shard(0), .desired = Shard(0)}}}},
          {.input = {std::nullopt, Shard(0)},
           .desired = {std::nullopt, Replicate()},
           .named = {{"x", {.input = Shard(0), .desired = Shard(0)}}}}};
      for (const PrepareInputOptions& options : ways) {
        Mixer mixer;
        CH_RETURN_IF_ERROR(ParallelizeModule(
            mixer, mesh, {{"", PrepareModuleInput(options)}}));
        const TensorList outputs =
            mixer.Call({Part(whole[0], mesh, 0), Part(whole[1], mesh, 0),
                        Replicated(whole[2], mesh)});
        CH_EXPECT_EQ(mixer.layouts,
                     (std::vector<std::string>{"[S(0)]", "[R]", "[R]"}));
        CH_EXPECT_EQ(WholeOf(outputs), expected);
        // An undefined input stays undefined.
        mixer.Call({Part(whole[0], mesh, 0), Part(whole[1], mesh, 0), {}});
        CH_EXPECT_EQ(mixer.layouts[2], "undefined");
      }
      return absl::OkStatus();
    });
  }
}

// Multiplies a rank's rows with the whole memory. The gradients of the
// replicated memory are summands, or equal if all ranks compute the same.
TEST(PrepareModuleInputTest, HandsLocalPartsToTheModule) {
  for (const bool sums : {false, true}) {
    OnMesh({{"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Mixer mixer;
      PrepareInputOptions options;
      options.input = {sums ? Shard(0) : Replicate(), Replicate()};
      options.desired = options.input;
      options.use_local_input = true;
      options.sum_local_gradients = sums;
      CH_RETURN_IF_ERROR(
          ParallelizeModule(mixer, mesh, {{"", PrepareModuleInput(options)}}));
      const TensorList whole = Inputs();
      const Layout replicated = Layout::Replicated(mesh.layout(), 2);
      Tensor memory = DistributeTensor(whole[1], mesh, replicated);
      memory.set_requires_grad(true);
      const Tensor x = sums ? Part(whole[0], mesh, 0) : whole[0];
      const TensorList outputs = mixer.Call({x, memory, {}});
      CH_EXPECT_EQ(mixer.layouts,
                   (std::vector<std::string>{"plain", "plain", "undefined"}));
      CH_RETURN_IF_ERROR(Backward(Sum(outputs[2])));
      Tensor one = whole[1].Detach().set_requires_grad(true);
      CH_RETURN_IF_ERROR(Backward(Sum(MatMul(whole[0], one, false, true))));
      CH_EXPECT_EQ(FullTensor(memory.grad()).ToVector<float>(),
                   one.grad().ToVector<float>());
      return absl::OkStatus();
    });
  }
}

TEST(PrepareModuleInputOutputTest, SeesAllOfBoth) {
  Mixer one;
  const Values expected = WholeOf(one.Call(Inputs()));
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const TensorList whole = Inputs();
      Mixer mixer;
      const Style style = PrepareModuleInputOutput(
          {.inputs = {.input = {Shard(0), Shard(0), Replicate()},
                      .desired = {Shard(0), Replicate(), Replicate()}},
           .outputs = {.output = {Shard(0), std::nullopt, Shard(0)},
                       .desired = {Replicate(), std::nullopt, Shard(1)}}});
      CH_RETURN_IF_ERROR(ParallelizeModule(mixer, mesh, {{"", style}}));
      const TensorList outputs = mixer.Call(
          {Part(whole[0], mesh, 0), Part(whole[1], mesh, 0), whole[2]});
      CH_EXPECT_EQ(LayoutText(outputs[0]), "[R]");
      CH_EXPECT_EQ(LayoutText(outputs[1]), "[R]");  // Unchanged.
      CH_EXPECT_EQ(LayoutText(outputs[2]), "[S(1)]");
      CH_EXPECT_EQ(WholeOf(outputs), expected);
      return absl::OkStatus();
    });
  }
}

TEST(PrepareModuleInputTest, NamesWhatDoesNotFit) {
  OnMesh({{"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    const auto message = [&](nn::Module& module, PrepareInputOptions options) {
      return std::string(
          ParallelizeModule(module, mesh,
                            {{"", PrepareModuleInput(std::move(options))}})
              .message());
    };
    Mixer mixer;
    CH_EXPECT_THAT(
        message(mixer, {.input = {Shard(0), Shard(0)}, .desired = Shard(0)}),
        HasSubstr("2 placements of inputs and 1 desired placements"));
    CH_EXPECT_THAT(message(mixer, {.input = {Shard(0), std::nullopt},
                                   .desired = {Shard(0), Replicate()}}),
                   HasSubstr("entry 1: the placement of the input is missing"));
    CH_EXPECT_THAT(
        message(mixer, {.input = {}, .desired = {}, .named = {{"y", {}}}}),
        HasSubstr("no input is called \"y\"; there are: x, memory, scale"));
    CH_EXPECT_THAT(message(mixer, {.named = {{"x", {}}}}),
                   HasSubstr("\"x\" is number 0 of `input`, too"));
    CH_EXPECT_THAT(message(mixer, {.sum_local_gradients = true}),
                   HasSubstr("sum_local_gradients is of local inputs"));
    nn::RmsNorm norm(kWidth, 1e-5);
    CH_EXPECT_THAT(
        message(norm, {.input = {}, .desired = {}, .named = {{"x", {}}}}),
        HasSubstr("RmsNorm does not (nn::NamedInputs)"));
    return absl::OkStatus();
  });
}

TEST(PrepareModuleInputDeathTest, CountsInputsAtTheForward) {
  EXPECT_DEATH(
      OnMesh({{"tp", 1}},
             [](const DeviceMesh& mesh) -> absl::Status {
               nn::RmsNorm norm(kWidth, 1e-5);
               CH_RETURN_IF_ERROR(ParallelizeModule(
                   norm, mesh,
                   {{"", PrepareModuleInput(
                             {.input = {Replicate(), Replicate()},
                              .desired = {Replicate(), Replicate()}})}}));
               CH_RETURN_IF_ERROR(norm.Materialize({}));
               norm.Forward(Ones({2, kWidth}));
               return absl::OkStatus();
             }),
      "has placements of 2 inputs, and there are 1");
}

TEST(DistributeOwnParametersTest, NamesTheParameterThatDoesNotHaveTheDim) {
  OnMesh({{"tp", 1}}, [](const DeviceMesh& mesh) -> absl::Status {
    nn::Linear linear(4, 4, {.bias = true});
    linear.NamedParameters();
    const absl::Status status = DistributeOwnParameters(linear, mesh, Shard(1));
    CH_EXPECT_THAT(std::string(status.message()),
                   HasSubstr("parameter bias, f32[4] on "));
    CH_EXPECT_THAT(std::string(status.message()), HasSubstr("S(1)"));
    return absl::OkStatus();
  });
}

TEST(RowwiseParallelDeathTest, ReportsAPlainTensorTakenForAShard) {
  EXPECT_DEATH(
      OnMesh({{"tp", 2}},
             [](const DeviceMesh& mesh) -> absl::Status {
               nn::Linear down(20, 8);
               CH_RETURN_IF_ERROR(
                   ParallelizeModule(down, mesh, {{"", RowwiseParallel()}}));
               CH_RETURN_IF_ERROR(down.Materialize({}));
               // The whole input, although a rank's shard would have 10
               // features.
               down.Forward(Ones({2, 20}));
               return absl::OkStatus();
             }),
      "module Linear with RowwiseParallel took the plain tensor f32.2, 20. on "
      "[a-z:0-9]+ as the local shard of one with 40 features, placement S.-1. "
      "on .*, "
      "and takes 20 features");
}

// A module with a buffer and no parameter.
class Weigh final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Mul(inputs[0], weights_.data())};
  }

 private:
  nn::Buffer& weights_ =
      MakeBuffer("weights", {6}, nn::init::ByElement([](const auto& e) {
                   return 1 + 0.25 * static_cast<double>(e.index[0]);
                 }));
};

// Two products, with a norm and a buffer in between.
class Block final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {
        down_.Forward(weigh_.Forward(norm_.Forward(up_.Forward(inputs[0]))))};
  }

 private:
  nn::Linear& up_ = Make<nn::Linear>(
      "up", {.in = kWidth, .out = 6, .bias = true, .stddev = 0.5});
  nn::RmsNorm& norm_ = Make<nn::RmsNorm>("norm", 6, 1e-5);
  Weigh& weigh_ = Make<Weigh>("weigh");
  nn::Linear& down_ =
      Make<nn::Linear>("down", {.in = 6, .out = kWidth, .stddev = 0.5});
};

absl::StatusOr<Values> OutputAndGradients(nn::Module& module) {
  const Tensor y = module.Forward(SmallIntegers({2, kRows, kWidth}, 1));
  CH_RETURN_IF_ERROR(Backward(Sum(Tanh(y))));
  TensorList tensors = {y};
  for (nn::Parameter* p : module.Parameters()) tensors.push_back(p->grad());
  return WholeOf(tensors);
}

// Three consecutive sums of at most 10 products, relative to the largest
// element of a tensor.
constexpr double kRoundings = 400;

Values Dense() {
  Block one;
  EXPECT_TRUE(one.Materialize({.seed = 5}).ok());
  const absl::StatusOr<Values> values = OutputAndGradients(one);
  EXPECT_TRUE(values.ok()) << values.status();
  return values.value_or(Values());
}

TEST(ReplicateParallelTest, ComputesTheWholeModuleOnEveryRank) {
  const Values expected = Dense();
  for (const int ranks : {1, 2, 3}) {
    const std::vector<ParallelPlan> plans = {
        // All replicated, except for a split part.
        {{"", ReplicateParallel()}, {"down", RowwiseParallel()}},
        // Only the norm is replicated: its split input is gathered.
        {{"up", ColwiseParallel()},
         {"norm", ReplicateParallel()},
         {"weigh", ReplicateParallel()},
         {"down", RowwiseParallel()}},
        {{"", ReplicateParallel({.use_local_output = true})}},
    };
    for (const ParallelPlan& plan : plans) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        Block block;
        CH_RETURN_IF_ERROR(ParallelizeModule(block, mesh, plan));
        CH_RETURN_IF_ERROR(block.Materialize({.seed = 5}));
        CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(block));
        ExpectNear(values, expected, kRoundings);
        return absl::OkStatus();
      });
    }
  }
}

TEST(ReplicateRestTest, ReplicatesModulesOutsideOfThePlan) {
  const Values expected = Dense();
  const std::vector<ParallelPlan> plans = {
      {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}},
      {{"down", RowwiseParallel()}},
      {{"up", ColwiseParallel({.output = Replicate()})}},
      {},
  };
  for (const ParallelPlan& plan : plans) {
    for (const int ranks : {1, 2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        Block block;
        CH_RETURN_IF_ERROR(
            ParallelizeModule(block, mesh, plan, {.replicate_rest = true}));
        CH_RETURN_IF_ERROR(block.Materialize({.seed = 5}));
        for (nn::Parameter* p : block.Parameters()) {
          CH_EXPECT_TRUE(p->data().is_distributed());
        }
        CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(block));
        ExpectNear(values, expected, kRoundings);
        return absl::OkStatus();
      });
    }
  }
}

int64_t AllReduces(const DeviceMesh& mesh) {
  int64_t calls = 0;
  for (const auto& communicator : mesh.communicators()) {
    const auto kind = static_cast<int>(CollectiveKind::kAllReduce);
    calls += communicator->stats().by_kind[kind].calls;
  }
  return calls;
}

// A norm whose output feeds two split projections.
class GatedMlp final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor x = norm_.Forward(inputs[0]);
    return {down_.Forward(Mul(gate_.Forward(x), up_.Forward(x)))};
  }

 private:
  nn::RmsNorm& norm_ = Make<nn::RmsNorm>("norm", kWidth, 1e-5);
  nn::Linear& gate_ =
      Make<nn::Linear>("gate", kWidth, 6, nn::LinearOptions{.stddev = 0.5});
  nn::Linear& up_ =
      Make<nn::Linear>("up", kWidth, 6, nn::LinearOptions{.stddev = 0.5});
  nn::Linear& down_ =
      Make<nn::Linear>("down", 6, kWidth, nn::LinearOptions{.stddev = 0.5});
};

TEST(ReplicatedNormTest, SumsItsGradientOnce) {
  GatedMlp one;
  ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
  const absl::StatusOr<Values> expected = OutputAndGradients(one);
  ASSERT_TRUE(expected.ok());
  for (const bool rest : {false, true}) {
    ParallelPlan plan = {{"gate", ColwiseParallel()},
                         {"up", ColwiseParallel()},
                         {"down", RowwiseParallel()}};
    if (!rest) plan.emplace_back("norm", ReplicateParallel());
    for (const int ranks : {2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        GatedMlp mlp;
        CH_RETURN_IF_ERROR(
            ParallelizeModule(mlp, mesh, plan, {.replicate_rest = rest}));
        CH_RETURN_IF_ERROR(mlp.Materialize({.seed = 5}));
        const ForbidImplicitRedistribution forbid;
        CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(mlp));
        ExpectNear(values, *expected, kRoundings);
        // One for the output of down, one for the norm's gradient.
        CH_EXPECT_EQ(AllReduces(mesh), 2);
        return absl::OkStatus();
      });
    }
  }
}

// A projection, a norm without parameters, and two split projections of its
// output.
class BareNormMlp final : public nn::Module {
 public:
  // \param group whether the norm is a GroupNorm of [2, 5, 4] in one group,
  //     else a LayerNorm.
  explicit BareNormMlp(bool group)
      : norm_(
            group
                ? static_cast<nn::Module&>(Make<nn::GroupNorm>(
                      "norm", 1, kRows, nn::GroupNormOptions{.affine = false}))
                : Make<nn::LayerNorm>(
                      "norm", kWidth,
                      nn::LayerNormOptions{.weight = false, .bias = false})) {}

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor x = norm_.Forward(in_.Forward(inputs[0]));
    return {down_.Forward(Mul(gate_.Forward(x), up_.Forward(x)))};
  }

 private:
  static nn::LinearOptions Options() { return {.stddev = 0.5}; }

  nn::Module& norm_;
  nn::Linear& in_ = Make<nn::Linear>("in", kWidth, kWidth, Options());
  nn::Linear& gate_ = Make<nn::Linear>("gate", kWidth, 6, Options());
  nn::Linear& up_ = Make<nn::Linear>("up", kWidth, 6, Options());
  nn::Linear& down_ = Make<nn::Linear>("down", 6, kWidth, Options());
};

TEST(ReplicatedNormTest, WithoutParametersPassesOnPendingSums) {
  for (const bool group : {false, true}) {
    BareNormMlp one(group);
    ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
    const absl::StatusOr<Values> expected = OutputAndGradients(one);
    ASSERT_TRUE(expected.ok());
    for (const int ranks : {2, 3}) {
      OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
        BareNormMlp mlp(group);
        CH_RETURN_IF_ERROR(ParallelizeModule(mlp, mesh,
                                             {{"gate", ColwiseParallel()},
                                              {"up", ColwiseParallel()},
                                              {"down", RowwiseParallel()}},
                                             {.replicate_rest = true}));
        CH_RETURN_IF_ERROR(mlp.Materialize({.seed = 5}));
        const ForbidImplicitRedistribution forbid;
        CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(mlp));
        ExpectNear(values, *expected, kRoundings);
        // One for the output of down, one for the gradient of in.
        CH_EXPECT_EQ(AllReduces(mesh), 2);
        return absl::OkStatus();
      });
    }
  }
}

// A replicated group norm, times its own output split by position. The gradient
// comes back split within the groups.
class SplitResidual final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    const Tensor x = in_.Forward(inputs[0]);
    const Tensor y = norm_.Forward(x);
    if (!y.is_distributed()) return {Mul(y, x)};
    return {Mul(y, Redistribute(x, LayoutOf(x).WithShard(0, 2)))};
  }

 private:
  nn::Linear& in_ =
      Make<nn::Linear>("in", kWidth, kWidth, nn::LinearOptions{.stddev = 0.5});
  nn::GroupNorm& norm_ = Make<nn::GroupNorm>(
      "norm", 1, kRows, nn::GroupNormOptions{.affine = false});
};

TEST(ReplicateParallelTest, TakesAGradientThatIsSplitWithinAView) {
  SplitResidual one;
  ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
  const absl::StatusOr<Values> expected = OutputAndGradients(one);
  ASSERT_TRUE(expected.ok());
  for (const int ranks : {2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      SplitResidual split;
      CH_RETURN_IF_ERROR(ParallelizeModule(split, mesh,
                                           {{"norm", ReplicateParallel()}},
                                           {.replicate_rest = true}));
      CH_RETURN_IF_ERROR(split.Materialize({.seed = 5}));
      CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(split));
      ExpectNear(values, *expected, kRoundings);
      return absl::OkStatus();
    });
  }
}

TEST(ColwiseParallelTest, CopiesWholeUnits) {
  OnMesh({{"tp", 4}}, [](const DeviceMesh& mesh) -> absl::Status {
    nn::Linear keys(kWidth, 8);
    CH_RETURN_IF_ERROR(ParallelizeModule(
        keys, mesh,
        {{"", ColwiseParallel({.unit = 4, .subunit = 2, .query_heads = 8})}}));
    CH_RETURN_IF_ERROR(keys.Materialize({}));
    const Tensor y = keys.Forward(Ones({1, 2, kWidth}));
    CH_EXPECT_EQ(LayoutText(y), "[S(2)/4]");
    CH_EXPECT_EQ(y.sizes(), (Shape{1, 2, 16}));
    CH_EXPECT_EQ(LayoutText(keys.weight()->data()), "[S(0)/4,R]");
    return absl::OkStatus();
  });
}

// A low-rank adapter, added by a hook before or after the plan.
class Adapter final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {up_.Forward(down_.Forward(inputs[0]))};
  }

 private:
  nn::Linear& down_ = Make<nn::Linear>("down", kWidth, 2);
  nn::Linear& up_ = Make<nn::Linear>("up", {.in = 2, .out = 8, .stddev = 0.5});
};

class Adapted final : public nn::Module {
 public:
  void AddHook() {
    keys_.AddPostHook(
        [this](nn::Module&, TensorSpan inputs, TensorList& outputs) {
          outputs[0] = outputs[0] + adapter_.Forward(inputs[0]);
        });
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {keys_.Forward(inputs[0])};
  }

 private:
  nn::Linear& keys_ =
      Make<nn::Linear>("keys", {.in = kWidth, .out = 8, .stddev = 0.5});
  Adapter& adapter_ = Make<Adapter>("adapter");
};

// As many ranks as key heads, and more, so that several ranks hold replicas.
TEST(ColwiseParallelTest, HooksSeeTheMeshOfThePlan) {
  Adapted one;
  one.AddHook();
  ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
  const auto input = [] { return SmallIntegers({1, 2, kWidth}, 1); };
  const Tensor expected = one.Forward(input());
  for (const int ranks : {2, 4}) {
    for (const bool before : {true, false}) {
      for (const bool checkpointed : {false, true}) {
        OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
          Adapted model;
          if (before) model.AddHook();
          const Style heads = ColwiseParallel({.unit = 4, .query_heads = 8});
          CH_RETURN_IF_ERROR(ParallelizeModule(
              model, mesh, {{"keys", heads}, {"adapter.up", heads}},
              {.replicate_rest = true}));
          if (!before) model.AddHook();
          if (checkpointed) {
            CH_RETURN_IF_ERROR(
                nn::CheckpointActivations(*model.children()[0].second));
          }
          CH_RETURN_IF_ERROR(model.Materialize({.seed = 5}));
          const Tensor y = model.Forward(input());
          // Each rank has the features of one head, with a replica on `copies`
          // ranks.
          const int64_t copies = ranks / 2;
          std::vector<float> whole;
          const auto all = FullTensor(y).ToVector<float>();
          for (size_t i = 0; i < all.size(); ++i) {
            if (static_cast<int64_t>(i) / 4 % copies == 0) {
              whole.push_back(all[i]);
            }
          }
          ExpectNear({whole}, {expected.ToVector<float>()}, kRoundings);
          CH_RETURN_IF_ERROR(Backward(Sum(y)));
          return absl::OkStatus();
        });
      }
    }
  }
}

// A program's own module: x * scale, element by element.
class Scale final : public nn::Module {
 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Mul(inputs[0], scale_.Get())};
  }

 private:
  nn::Parameter& scale_ =
      MakeParameter("scale", {kWidth}, nn::init::Normal(0.5));
};

// [own_style]
// Splits a Scale and its input by features.
class SplitScale final : public ParallelStyle {
 public:
  const char* name() const override { return "SplitScale"; }

  absl::Status Check(const nn::Module& module,
                     const std::string& module_name) const override {
    if (dynamic_cast<const Scale*>(&module) != nullptr) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("SplitScale is of Scale, not of " +
                                      module_name);
  }

  absl::Status Apply(nn::Module& module, const std::string& /*module_name*/,
                     const DeviceMesh& mesh) const override {
    CH_RETURN_IF_ERROR(DistributeOwnParameters(module, mesh, Shard(0)));
    module.AddPreHook([mesh](nn::Module&, TensorList& inputs) {
      inputs[0] = RedistributeActivation(
          inputs[0], mesh, {.given = Replicate(), .desired = Shard(-1)});
    });
    return absl::OkStatus();
  }
};
// [/own_style]

TEST(OwnStyleTest, IsMadeOfTheSameParts) {
  CH_SKIP_ON(Device::Kind::kCuda, "expects the bits of the CPU's tanh");
  Scale one;
  ASSERT_TRUE(one.Materialize({.seed = 5}).ok());
  const absl::StatusOr<Values> expected = OutputAndGradients(one);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      Scale scale;
      CH_RETURN_IF_ERROR(ParallelizeModule(
          scale, mesh, {{"", std::make_shared<SplitScale>()}}));
      CH_RETURN_IF_ERROR(scale.Materialize({.seed = 5}));
      CH_EXPECT_EQ(LayoutText(scale.Parameters()[0]->data()), "[S(0)]");
      CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(scale));
      CH_EXPECT_EQ(values, *expected);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace crosshatch::tp
