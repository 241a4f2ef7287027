// SPDX-License-Identifier: Apache-2.0

// ColwiseParallel, RowwiseParallel and ReplicateParallel; and a program's own
// style.

#include <cstdint>
#include <functional>
#include <memory>
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

// Sizes that two and three ranks do not divide.
constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 4;

std::string LayoutText(const Tensor& t) {
  return t.is_distributed() ? LayoutOf(t).ToString() : "plain";
}

Values WholeOf(const TensorList& tensors) {
  Values values;
  for (const Tensor& t : tensors) {
    values.push_back(FullTensor(t).ToVector<float>());
  }
  return values;
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

int64_t AllReduces(const DeviceMesh& mesh) {
  int64_t calls = 0;
  for (const auto& communicator : mesh.communicators()) {
    const auto kind = static_cast<int>(CollectiveKind::kAllReduce);
    calls += communicator->stats().by_kind[kind].calls;
  }
  return calls;
}

template <typename M>
std::unique_ptr<nn::Module> New() {
  return std::make_unique<M>();
}

// Compares a module under `plan` with the module on one rank.
// `all_reduces`: on several ranks, their number, without an implicit
// redistribution.
void ExpectMatchesOneRank(
    const std::function<std::unique_ptr<nn::Module>()>& make,
    const ParallelPlan& plan, bool replicate_rest,
    std::optional<int64_t> all_reduces = std::nullopt) {
  const std::unique_ptr<nn::Module> one = make();
  ASSERT_TRUE(one->Materialize({.seed = 5}).ok());
  const absl::StatusOr<Values> expected = OutputAndGradients(*one);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const int ranks : {1, 2, 3}) {
    OnMesh({{"tp", ranks}}, [&](const DeviceMesh& mesh) -> absl::Status {
      const std::unique_ptr<nn::Module> module = make();
      CH_RETURN_IF_ERROR(ParallelizeModule(*module, mesh, plan,
                                           {.replicate_rest = replicate_rest}));
      CH_RETURN_IF_ERROR(module->Materialize({.seed = 5}));
      for (nn::Parameter* p : module->Parameters()) {
        CH_EXPECT_TRUE(p->data().is_distributed() || !replicate_rest);
      }
      std::optional<ForbidImplicitRedistribution> forbid;
      if (all_reduces.has_value()) forbid.emplace();
      CH_ASSIGN_OR_RETURN(const Values values, OutputAndGradients(*module));
      ExpectNear(values, *expected, kRoundings);
      if (all_reduces.has_value() && ranks > 1) {
        CH_EXPECT_EQ(AllReduces(mesh), *all_reduces);
      }
      return absl::OkStatus();
    });
  }
}

TEST(ReplicateParallelTest, ComputesTheWholeModuleOnEveryRank) {
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
    ExpectMatchesOneRank(New<Block>, plan,
                         /*replicate_rest=*/false);
  }
}

TEST(ReplicateRestTest, ReplicatesModulesOutsideOfThePlan) {
  const std::vector<ParallelPlan> plans = {
      {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}},
      {{"down", RowwiseParallel()}},
      {{"up", ColwiseParallel({.output = Replicate()})}},
      {},
  };
  for (const ParallelPlan& plan : plans) {
    ExpectMatchesOneRank(New<Block>, plan,
                         /*replicate_rest=*/true);
  }
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

ParallelPlan GatedPlan() {
  return {{"gate", ColwiseParallel()},
          {"up", ColwiseParallel()},
          {"down", RowwiseParallel()}};
}

// One for the output of down, one for the norm's gradient.
TEST(ReplicatedNormTest, SumsItsGradientOnce) {
  ExpectMatchesOneRank(New<GatedMlp>, GatedPlan(),
                       /*replicate_rest=*/true, /*all_reduces=*/2);
  ParallelPlan plan = GatedPlan();
  plan.emplace_back("norm", ReplicateParallel());
  ExpectMatchesOneRank(New<GatedMlp>, plan,
                       /*replicate_rest=*/false, /*all_reduces=*/2);
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

// One for the output of down, one for the gradient of in.
TEST(ReplicatedNormTest, WithoutParametersPassesOnPendingSums) {
  for (const bool group : {false, true}) {
    ExpectMatchesOneRank([&] { return std::make_unique<BareNormMlp>(group); },
                         GatedPlan(),
                         /*replicate_rest=*/true, /*all_reduces=*/2);
  }
}

// A replicated group norm, times its own output split by position. The gradient
// is split within the groups.
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
  ExpectMatchesOneRank(New<SplitResidual>, {{"norm", ReplicateParallel()}},
                       /*replicate_rest=*/true);
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
