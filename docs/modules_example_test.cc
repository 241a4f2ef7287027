// SPDX-License-Identifier: Apache-2.0

/// \file
/// The model of docs/modules.md. It is trained by each optimizer on several
/// meshes, and the losses are compared with one rank's. The page prints the
/// text between [name] and [/name].
/// [name] and [/name] is printed there.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/conv.h"
#include "crosshatch/nn/layers/gelu.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/name_pattern.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/ema.h"
#include "crosshatch/nn/optim/lion.h"
#include "crosshatch/nn/optim/sgd.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;

namespace {

// [mlp]
class Mlp final : public ch::nn::Module {
 public:
  explicit Mlp(int64_t dim) : dim_(dim) {}

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const ch::Tensor& x = inputs[0];  // [..., dim]
    return {x + down_.Forward(gelu_.Forward(up_.Forward(norm_.Forward(x))))};
  }

 private:
  const int64_t dim_;
  ch::nn::LayerNorm& norm_ = Make<ch::nn::LayerNorm>("norm", dim_);
  ch::nn::Linear& up_ = Make<ch::nn::Linear>("up", dim_, 4 * dim_);
  ch::nn::Gelu& gelu_ = Make<ch::nn::Gelu>("gelu");
  ch::nn::Linear& down_ = Make<ch::nn::Linear>("down", 4 * dim_, dim_);
};
// [/mlp]

// [classifier]
/// Images [N, 1, 4, 4] to logits [N, classes], by way of 2 x 2 patches.
class Classifier final : public ch::nn::Module {
 public:
  Classifier(int64_t dim, int64_t layers, int64_t classes)
      : dim_(dim), classes_(classes) {
    for (int64_t i = 0; i < layers; ++i) blocks_.Add(dim);
  }
  ch::nn::ModuleList<Mlp>& blocks() { return blocks_; }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    const ch::Tensor patches = norm_.Forward(embed_.Forward(inputs[0]));
    ch::Tensor x = ch::Transpose(ch::Flatten(patches, 2), 1, 2);
    x = x + ch::ReplicatedLike(ch::ToDType(places_.data(), x.dtype()), x);
    for (Mlp& block : blocks_) x = block.Forward(x);
    return {head_.Forward(ch::Mean(x, {1}))};
  }

 private:
  const int64_t dim_;
  const int64_t classes_;
  ch::nn::Conv2d& embed_ =
      Make<ch::nn::Conv2d>("embed", 1, dim_, ch::RowsCols{2, 2},
                           ch::Conv2dOptions{.windows = {.stride = {2, 2}}});
  ch::nn::GroupNorm& norm_ = Make<ch::nn::GroupNorm>("norm", 2, dim_);
  ch::nn::Buffer& places_ = MakeBuffer(
      "places", {4, dim_}, ch::nn::init::ByElement([](const auto& element) {
        return std::sin(static_cast<double>(element.index[0]) +
                        0.5 * static_cast<double>(element.index[1]));
      }));
  ch::nn::ModuleList<Mlp>& blocks_ = Make<ch::nn::ModuleList<Mlp>>("blocks");
  ch::nn::Linear& head_ = Make<ch::nn::Linear>("head", dim_, classes_);
};
// [/classifier]

// [initialize]
void Initialize(Classifier& model, int64_t layers) {
  namespace init = ch::nn::init;
  model.ForEachModule([](ch::nn::Module& module) {
    auto* linear = dynamic_cast<ch::nn::Linear*>(&module);
    if (linear != nullptr) {
      linear->weight()->set_initializer(init::XavierUniform());
    }
  });
  // Those that end a residual branch.
  for (const ch::nn::NamedParameter& named : model.NamedParameters()) {
    if (ch::nn::NameMatches("**.down.weight")(*named.parameter)) {
      named.parameter->set_initializer(init::ScaledResidual(layers, 0.1));
    }
  }
}
// [/initialize]

constexpr int64_t kDim = 6;
constexpr int64_t kLayers = 2;
constexpr int64_t kClasses = 3;
constexpr int64_t kRows = 5;
constexpr int kSteps = 6;

using MakeOptimizer = std::function<std::unique_ptr<ch::nn::Optimizer>(
    std::vector<ch::nn::Parameter*>)>;

struct Method {
  const char* name;
  MakeOptimizer make;
};

std::vector<Method> Methods() {
  using Parameters = std::vector<ch::nn::Parameter*>;
  return {
      {"AdamW",
       [](Parameters p) {
         return std::make_unique<ch::nn::AdamW>(
             std::move(p), ch::nn::AdamWOptions{.lr = 0.01});
       }},
      {"Sgd",
       [](Parameters p) {
         return std::make_unique<ch::nn::Sgd>(
             std::move(p),
             ch::nn::SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"Lion",
       [](Parameters p) {
         return std::make_unique<ch::nn::Lion>(
             std::move(p), ch::nn::LionOptions{.lr = 0.003});
       }},
  };
}

/// This rank's rows of the five images and of their classes.
struct Rows {
  ch::Tensor images;
  ch::Tensor classes;
};
Rows RowsOf(int rank, int ranks) {
  const auto [begin, end] =
      std::pair{kRows * rank / ranks, kRows * (rank + 1) / ranks};
  const ch::Tensor classes = ch::FromValues<int64_t>({kRows}, {0, 2, 1, 1, 0});
  return {ch::Slice(ch::SmallIntegers({kRows, 1, 4, 4}, 3), 0, begin, end),
          ch::Slice(classes, 0, begin, end)};
}

/// Returns the sum of the losses of all ranks' rows, divided by the number of
/// rows.
ch::Tensor LossOf(Classifier& model, const Rows& rows) {
  return ch::CrossEntropy(
             model.Forward(rows.images), rows.classes,
             {.reduction = ch::CrossEntropyOptions::Reduction::kSum}) /
         kRows;
}

struct Result {
  std::vector<float> losses;
  float of_average = 0;
};

absl::StatusOr<Result> Train(
    Classifier& model, const MakeOptimizer& make, const Rows& rows,
    const std::function<float(const ch::Tensor&)>& sum) {
  Result run;
  const std::unique_ptr<ch::nn::Optimizer> optimizer = make(model.Parameters());
  ch::nn::Ema ema(model.Parameters(), {.decay = 0.5});
  for (int step = 0; step < kSteps; ++step) {
    const ch::Tensor loss = LossOf(model, rows);
    CH_RETURN_IF_ERROR(ch::Backward(loss));
    CH_RETURN_IF_ERROR(optimizer->Step());
    CH_RETURN_IF_ERROR(ema.Update());
    optimizer->ZeroGrad();
    run.losses.push_back(sum(loss));
  }
  // [average]
  const ch::NoGrad no_grad;
  model.set_training(false);
  CH_RETURN_IF_ERROR(ema.SwapIn());
  run.of_average = sum(LossOf(model, rows));
  CH_RETURN_IF_ERROR(ema.SwapOut());
  // [/average]
  run.losses.push_back(sum(LossOf(model, rows)));
  return run;
}

Result OnOneRank(const Method& method) {
  Classifier model(kDim, kLayers, kClasses);
  Initialize(model, kLayers);
  EXPECT_TRUE(model.Materialize({.seed = 7}).ok());
  const absl::StatusOr<Result> run =
      Train(model, method.make, RowsOf(0, 1),
            [](const ch::Tensor& loss) { return loss.ToVector<float>()[0]; });
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(Result());
}

absl::Status OnRanks(ch::World& world, const Method& method, int tp_ranks,
                     const Result& expected) {
  CH_ASSIGN_OR_RETURN(
      const ch::DeviceMesh mesh,
      ch::InitDeviceMesh(
          world, {{"fsdp", world.size() / tp_ranks}, {"tp", tp_ranks}}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh tp, mesh.Slice("tp"));
  Classifier model(kDim, kLayers, kClasses);
  Initialize(model, kLayers);
  ch::fsdp::FullyShardOptions options;
  options.reduction.divide_factor = 1;  // The loss is divided by all rows.
  if (tp_ranks > 1) {
    CH_RETURN_IF_ERROR(ch::tp::ParallelizeModule(
        model, tp,
        {{"blocks.*.up", ch::tp::ColwiseParallel()},
         {"blocks.*.down",
          ch::tp::RowwiseParallel({.use_local_output = true})}}));
  }
  for (Mlp& block : model.blocks()) {
    CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(block, fsdp, options));
  }
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, fsdp, options));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));

  const int part = static_cast<int>(*fsdp.index(0));
  CH_ASSIGN_OR_RETURN(
      const Result run,
      Train(model, method.make, RowsOf(part, fsdp.size(0)),
            [&](const ch::Tensor& loss) {
              const ch::Layout sums = ch::Layout::Replicated(fsdp.layout(), 0)
                                          .WithPartial(0, ch::ReduceOp::kSum);
              return ch::FullTensor(
                         ch::MakeDTensor(ch::LocalTensor(loss.Detach()), fsdp,
                                         sums, ch::Shape{}))
                  .ToVector<float>()[0];
            }));
  // Sums of at most 24 products run in other orders, and the steps follow from
  // them.
  CH_EXPECT_EQ(run.losses.size(), expected.losses.size());
  for (size_t i = 0; i < run.losses.size(); ++i) {
    CH_EXPECT_NEAR(run.losses[i], expected.losses[i], 2e-5)
        << method.name << " step " << i;
  }
  CH_EXPECT_NEAR(run.of_average, expected.of_average, 2e-5) << method.name;
  return world.context().Synchronize();
}

TEST(ModulesExampleTest, TrainsAlikeOnEveryMesh) {
  for (const Method& method : Methods()) {
    const Result expected = OnOneRank(method);
    ASSERT_EQ(expected.losses.size(), size_t{kSteps} + 1) << method.name;
    EXPECT_LT(expected.losses.back(), expected.losses.front() - 0.1)
        << method.name;
    EXPECT_NE(expected.of_average, expected.losses.back()) << method.name;
    ch::RunRanks(3, [&](ch::World& world) {
      return OnRanks(world, method, /*tp_ranks=*/1, expected);
    });
    ch::RunRanks(4, [&](ch::World& world) {
      return OnRanks(world, method, /*tp_ranks=*/2, expected);
    });
  }
}

TEST(ModulesExampleTest, Pieces) {
  // [sequential]
  ch::nn::Sequential mlp;
  mlp.Add<ch::nn::Linear>(16, 64);
  mlp.Add<ch::nn::Gelu>(ch::nn::GeluForm::kTanh);
  mlp.Add<ch::nn::Linear>(64, 16);
  // [/sequential]
  mlp.set_dtype(ch::kBFloat16);
  ASSERT_TRUE(mlp.Materialize({.seed = 1}).ok());
  EXPECT_EQ(mlp.NamedParameters()[0].parameter->data().dtype(), ch::kBFloat16);
  EXPECT_EQ(mlp.Forward(ch::Ones({2, 16})).sizes(), (ch::Shape{2, 16}));

  // [operators]
  const ch::Tensor x = ch::Reshape(ch::Arange(6), {2, 3});
  const ch::Tensor y = (2 * x - 1) / 4;
  const ch::Tensor last = y[{ch::Range{}, -1}];     // [2]
  const ch::Tensor middle = y[0][ch::Range{1, 3}];  // [2]
  const std::string text = ch::ToString(x);
  // [/operators]
  EXPECT_EQ(last.ToVector<float>(), (std::vector<float>{0.75, 2.25}));
  EXPECT_EQ(middle.ToVector<float>(), (std::vector<float>{0.25, 0.75}));
  EXPECT_EQ(text,
            "f32[2, 3] on cpu\n"
            "[[0, 1, 2],\n"
            " [3, 4, 5]]");
}

TEST(ModulesExampleTest, DistributedTensorsPrintTheirPart) {
  ch::OnMesh({{"tp", 2}}, [](const ch::DeviceMesh& mesh) {
    const ch::Tensor rows = ch::DistributeTensor(
        ch::Reshape(ch::Arange(6), {3, 2}), mesh,
        ch::Layout::Replicated(mesh.layout(), 2).WithShard(0, 0));
    CH_EXPECT_EQ(
        ch::ToString(rows),
        rows.Describe() + (mesh.index(0) == 0 ? "\nhere [2, 2]:\n"
                                                "[[0, 1],\n [2, 3]]"
                                              : "\nhere [1, 2]:\n[[4, 5]]"));
  });
}

}  // namespace
