// SPDX-License-Identifier: Apache-2.0

/// \file
/// Norms, clipping, AdamW and loss scaling after FSDP's backward, with
/// parameters on different meshes, in device or host memory: results equal one
/// rank's bit for bit, because gradients are integers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/optim/ema.h"
#include "crosshatch/nn/optim/grad_scaler.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using Axes = std::vector<MeshAxis>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kDim = 5;

struct Meshes {
  DeviceMesh data;  ///< All axes but tp.
  DeviceMesh flat;  ///< The same as one axis.
  DeviceMesh tp;
};

// Creates the meshes. The last axis is tp.
absl::StatusOr<Meshes> MakeMeshes(World& world, const Axes& axes) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, axes));
  CH_ASSIGN_OR_RETURN(DeviceMesh tp, mesh.Slice("tp"));
  std::vector<std::string> names(mesh.axis_names().begin(),
                                 mesh.axis_names().end());
  names.pop_back();
  CH_ASSIGN_OR_RETURN(DeviceMesh data, mesh.Slice(names));
  DeviceMesh flat = data;
  if (data.ndim() > 1) {
    CH_ASSIGN_OR_RETURN(flat, data.Flatten(names, "data"));
  }
  return Meshes{std::move(data), std::move(flat), std::move(tp)};
}

// Puts block 0 on fsdp and tp, block 1 on replicas, block 2 on tp alone, the
// head's weight on fsdp. The head's bias stays plain.
absl::StatusOr<std::vector<const nn::Parameter*>> Spread(
    TestModel& model, const Meshes& meshes, FullyShardOptions options) {
  const auto col = tp::ColwiseParallel();
  const auto row = tp::RowwiseParallel({.use_local_output = true});
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(model, meshes.tp,
                                           {{"blocks.0.up", col},
                                            {"blocks.0.down", row},
                                            {"blocks.2.up", col},
                                            {"blocks.2.down", row}}));
  const auto ragged = std::exchange(options.ragged_shard, std::nullopt);
  CH_RETURN_IF_ERROR(Replicate(*model.blocks()[1], meshes.flat, options));
  options.ragged_shard = ragged;
  for (nn::Parameter* p : model.blocks()[2]->Parameters()) {
    options.ignored_params.push_back(p);
  }
  for (const nn::NamedParameter& named : model.NamedParameters()) {
    if (named.name == "head.bias") {
      options.ignored_params.push_back(named.parameter);
    }
  }
  CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[0], meshes.data, options));
  CH_RETURN_IF_ERROR(FullyShard(model, meshes.data, options));
  return options.ignored_params;
}

// Sums the gradients of ignored parameters, as a program would.
absl::Status SumOver(const DeviceMesh& mesh,
                     const std::vector<const nn::Parameter*>& parameters) {
  NoGrad no_grad;
  Stream& stream = RankContext::Current().compute_stream();
  CH_ASSIGN_OR_RETURN(Communicator * comm, mesh.communicator(0, stream.name()));
  for (const nn::Parameter* p : parameters) {
    const Tensor gradient = LocalTensor(p->grad());
    CH_RETURN_IF_ERROR(AllReduce(*comm, gradient.data<float>(),
                                 gradient.numel(), kFloat32, ReduceOp::kSum,
                                 stream, "left alone"));
  }
  return absl::OkStatus();
}

struct Outcome {
  double norm;
  Weights weights;  ///< The clipped gradients, then the weights.
};

absl::StatusOr<Outcome> ClipAndStep(TestModel& model, double norm_type) {
  const std::vector<nn::Parameter*> parameters = model.Parameters();
  CH_ASSIGN_OR_RETURN(const double norm, nn::GradNorm(parameters, norm_type));
  CH_RETURN_IF_ERROR(
      nn::ClipGradNorm(parameters, 1, {.norm_type = norm_type}).status());
  nn::AdamW optimizer(parameters, {.lr = 0.25});
  CH_RETURN_IF_ERROR(optimizer.Step());
  Weights weights = FullGradients(model);
  for (auto& more : FullWeights(model)) weights.push_back(std::move(more));
  return Outcome{norm, std::move(weights)};
}

// The norm's type, the mesh, whether shards are in host memory, and whether
// they are ragged.
using ClipCase = std::tuple<double, Axes, bool, bool>;

class ClippingTest : public testing::TestWithParam<ClipCase> {};

TEST_P(ClippingTest, AndStepsAcrossMeshesAreThoseOfOneRank) {
  const double norm_type = std::get<0>(GetParam());
  const Axes& axes = std::get<1>(GetParam());
  const bool offload = std::get<2>(GetParam());
  const bool ragged = std::get<3>(GetParam());
  TestModel dense(3, kDim, 7, 3);
  dense.FillWithIntegers();
  ASSERT_TRUE(Backward(Sum(dense.Forward(BatchOf(0, 1, 1)))).ok());
  const absl::StatusOr<Outcome> expected = ClipAndStep(dense, norm_type);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_GT(expected->norm, 1);
  RunRanks(MeshAxes(axes).ranks(),
           [&](World& world) -> absl::Status {
             CH_ASSIGN_OR_RETURN(const Meshes meshes, MakeMeshes(world, axes));
             TestModel model(3, kDim, 7, 3);
             model.FillWithIntegers();
             FullyShardOptions options;
             options.reduction.divide_factor = 1;
             options.cpu_offload = offload;
             if (ragged) options.ragged_shard = RaggedShard();
             CH_ASSIGN_OR_RETURN(const auto ignored,
                                 Spread(model, meshes, options));
             const int part = static_cast<int>(*meshes.flat.index(0));
             const int parts = meshes.flat.size(0);
             CH_RETURN_IF_ERROR(
                 Backward(Sum(model.Forward(BatchOf(part, parts, 1)))));
             CH_RETURN_IF_ERROR(SumOver(meshes.flat, ignored));
             CH_ASSIGN_OR_RETURN(const Outcome outcome,
                                 ClipAndStep(model, norm_type));
             CH_EXPECT_EQ(outcome.norm, expected->norm);
             CH_EXPECT_EQ(outcome.weights, expected->weights);
             return world.context().Synchronize();
           },
           {.test = {.adversarial_seed = offload ? 7u : 0u}});
}

std::string NameOfCase(const testing::TestParamInfo<ClipCase>& info) {
  const auto& [norm_type, axes, offload, ragged] = info.param;
  std::string name = absl::StrCat("norm_", norm_type, "_on");
  for (const MeshAxis& axis : axes) {
    absl::StrAppend(&name, "_", axis.name, axis.size);
  }
  return absl::StrCat(name, offload ? "_offloaded" : "",
                      ragged ? "_ragged" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ClippingTest,
    testing::Combine(
        testing::Values(1.0, 2.0, kInfinity),
        testing::Values(Axes{{"fsdp", 2}, {"tp", 2}},
                        Axes{{"fsdp", 3}, {"tp", 1}},
                        Axes{{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}),
        testing::Bool(), testing::Bool()),
    NameOfCase);

void AddPenalty(nn::Module& model, double penalty) {
  // [penalty]
  // After Backward, add the gradient of penalty / 2 times the sum of squares.
  const NoGrad no_grad;
  for (nn::Parameter* parameter : model.Parameters()) {
    if (!parameter->grad().defined()) continue;
    AddInPlace(parameter->grad(), parameter->data(), penalty);
  }
  // [/penalty]
}

TEST(FsdpOptimizersTest, APenaltyIsThatOfOneRank) {
  constexpr double kPenalty = 2;
  TestModel dense(3, kDim, 7, 3);
  dense.FillWithIntegers();
  Tensor loss = Sum(dense.Forward(BatchOf(0, 1, 1)));
  for (const nn::Parameter* p : dense.Parameters()) {
    loss = Add(loss, Sum(Square(p->data())), kPenalty / 2);
  }
  ASSERT_TRUE(Backward(loss).ok());
  const Weights expected = FullGradients(dense);
  RunRanks(4, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const Meshes meshes,
                        MakeMeshes(world, {{"fsdp", 2}, {"tp", 2}}));
    TestModel model(3, kDim, 7, 3);
    model.FillWithIntegers();
    CH_ASSIGN_OR_RETURN(
        const auto ignored,
        Spread(model, meshes, {.reduction = {.divide_factor = 1}}));
    const int part = static_cast<int>(*meshes.data.index(0));
    CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(part, 2, 1)))));
    CH_RETURN_IF_ERROR(SumOver(meshes.flat, ignored));
    AddPenalty(model, kPenalty);
    CH_EXPECT_EQ(FullGradients(model), expected);
    return world.context().Synchronize();
  });
}

// The last output of the last rank overflows float16 in the reduction, and
// nothing before does, because its weights are zeros. Only the rank of the last
// row observes it locally.
TEST(FsdpOptimizersTest, NoRankStepsWhereOneOverflows) {
  for (const bool offload : {false, true}) {
    RunRanks(4, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const Meshes meshes,
                          MakeMeshes(world, {{"fsdp", 2}, {"tp", 2}}));
      TestModel model(1, kDim, 7, 3);
      model.FillWithIntegers();
      nn::Parameter* head = nullptr;
      for (const nn::NamedParameter& named : model.NamedParameters()) {
        if (named.name == "head.weight") head = named.parameter;
      }
      std::vector<float> values = head->data().ToVector<float>();
      std::fill(values.end() - kDim, values.end(), 0.0f);
      head->set_data(FromValues<float>({3, kDim}, values));
      CH_RETURN_IF_ERROR(tp::ParallelizeModule(
          model, meshes.tp,
          {{"blocks.0.up", tp::ColwiseParallel()},
           {"blocks.0.down",
            tp::RowwiseParallel({.use_local_output = true})}}));
      FullyShardOptions options;
      options.cpu_offload = offload;
      options.mixed_precision.reduce_dtype = kFloat16;
      CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[0], meshes.data, options));
      CH_RETURN_IF_ERROR(FullyShard(model, meshes.data, options));
      nn::AdamW optimizer(model.Parameters(), {.lr = 0.1});
      nn::GradScaler scaler({.init_scale = 4});
      const int part = static_cast<int>(*meshes.data.index(0));
      for (const bool overflows : {true, false}) {
        const Weights before = FullWeights(model);
        const float last = overflows && part == 1 ? 1e6f : 1.0f;
        const Tensor loss = Sum(Mul(model.Forward(BatchOf(part, 2, 1)),
                                    FromValues<float>({3}, {1, 1, last})));
        CH_RETURN_IF_ERROR(Backward(scaler.Scale(loss)));
        bool finite = true;
        for (nn::Parameter* p : model.Parameters()) {
          for (const float g : LocalTensor(p->grad()).ToVector<float>()) {
            finite = finite && std::isfinite(g);
          }
        }
        CH_EXPECT_EQ(finite, !overflows || part == 0);
        CH_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer));
        CH_EXPECT_EQ(stepped, !overflows);
        CH_EXPECT_EQ(FullWeights(model) == before, overflows);
        CH_RETURN_IF_ERROR(scaler.Update());
        CH_EXPECT_EQ(scaler.scale(), 2);
        optimizer.ZeroGrad();
      }
      return world.context().Synchronize();
    });
  }
}

TEST(FsdpOptimizersTest, OutliveTheirModel) {
  for (const bool replicate : {false, true}) {
    RunRanks(2, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"fsdp", 2}}));
      auto model = std::make_unique<TestModel>(1, kDim, 7, 3);
      model->FillWithIntegers();
      if (replicate) {
        CH_RETURN_IF_ERROR(Replicate(*model, mesh));
      } else {
        CH_RETURN_IF_ERROR(FullyShard(*model->blocks()[0], mesh));
        CH_RETURN_IF_ERROR(FullyShard(*model, mesh));
      }
      nn::AdamW optimizer(model->Parameters(), {.lr = 0.1});
      nn::Ema ema(model->Parameters(), {});
      nn::ModuleState state(*model);
      CH_RETURN_IF_ERROR(ema.Update());
      CH_RETURN_IF_ERROR(
          Backward(Sum(model->Forward(BatchOf(world.rank(), 2, 1)))));
      CH_RETURN_IF_ERROR(ema.SwapIn());
      model.reset();
      CH_RETURN_IF_ERROR(ema.SwapOut());
      CH_RETURN_IF_ERROR(nn::ClipGradNorm(optimizer.parameters(), 1).status());
      CH_RETURN_IF_ERROR(optimizer.Step());
      CH_RETURN_IF_ERROR(ema.Update());
      CH_RETURN_IF_ERROR(optimizer.State().status());
      CH_RETURN_IF_ERROR(ema.State().status());
      CH_EXPECT_TRUE(absl::IsFailedPrecondition(state.State().status()));
      return world.context().Synchronize();
    });
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
