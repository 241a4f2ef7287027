// SPDX-License-Identifier: Apache-2.0

// Parameters of one model on several meshes, by FullyShardOptions::mesh_of or
// by FullyShard calls with different meshes in one tree.

#include <optional>
#include <string>
#include <vector>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  double norm = 0;
  Weights weights;
};

// Runs two steps in integers, then a clipped step of AdamW.
absl::StatusOr<Outcome> TrainSome(TestModel& model, int rank, int ranks) {
  for (int step = 0; step < 3; ++step) {
    CH_RETURN_IF_ERROR(
        Backward(Sum(model.Forward(BatchOf(rank, ranks, step)))));
    if (step < 2) IntegerDescent(model);
  }
  const std::vector<nn::Parameter*> parameters = model.Parameters();
  CH_ASSIGN_OR_RETURN(const double norm, nn::GradNorm(parameters));
  CH_RETURN_IF_ERROR(nn::ClipGradNorm(parameters, 1).status());
  nn::AdamW optimizer(parameters, {.lr = 0.125});
  CH_RETURN_IF_ERROR(optimizer.Step());
  return Outcome{norm, FullWeights(model)};
}

// In a block, "up" is sharded over the second axis and replicated over the
// first, and "down" the other way round, as experts of a model may be. The rest
// of the model is sharded over all ranks.
absl::Status Shard(World& world, TestModel& model, std::string* plan) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"dp", 2}, {"ep", 2}}));
  const std::vector<std::string> turned_names = {"ep", "dp"};
  CH_ASSIGN_OR_RETURN(const DeviceMesh turned, mesh.Slice(turned_names));
  CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                      mesh.Flatten(mesh.axis_names(), "all"));
  FullyShardOptions options;
  options.reduction.divide_factor = 1;
  options.mesh_of = [&](const nn::Parameter& p) -> std::optional<DeviceMesh> {
    if (p.name().find("up.") != std::string::npos) return mesh;
    if (p.name().find("down.weight") != std::string::npos) return turned;
    return std::nullopt;
  };
  CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[0], all, options));
  // Another block of the tree is on another mesh as a whole.
  options.mesh_of = nullptr;
  CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[1], turned, options));
  CH_RETURN_IF_ERROR(FullyShard(model, all, options));
  if (plan != nullptr) *plan = DescribePlan(model);
  return absl::OkStatus();
}

TEST(MeshOfTest, TrainsAndClipsAsOneRankDoes) {
  TestModel dense(2, 5, 7, 3);
  dense.FillWithIntegers();
  const absl::StatusOr<Outcome> expected = TrainSome(dense, 0, 1);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const absl::Status status =
        StatusOfRanks(4,
                      [&](World& world) -> absl::Status {
                        TestModel model(2, 5, 7, 3);
                        model.FillWithIntegers();
                        CH_RETURN_IF_ERROR(Shard(world, model, nullptr));
                        CH_ASSIGN_OR_RETURN(const Outcome outcome,
                                            TrainSome(model, world.rank(), 4));
                        CH_EXPECT_EQ(outcome.norm, expected->norm);
                        CH_EXPECT_EQ(outcome.weights, expected->weights);
                        return world.context().Synchronize();
                      },
                      {.test = {.adversarial_seed = seed}});
    EXPECT_TRUE(status.ok()) << "seed " << seed << ": " << status;
  }
}

TEST(MeshOfTest, EachMeshIsAGroup) {
  std::string plan;
  const absl::Status status = StatusOfRanks(4, [&](World& world) {
    TestModel model(2, 5, 7, 3);
    return Shard(world, model, world.rank() == 0 ? &plan : nullptr);
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(
      plan,
      HasSubstr(
          "blocks.0 (f32) on mesh(dp=2, ep=2): f32 shards, gathered as f32, "
          "gradients reduced as f32, over 2 ranks, replicated 2 times; ZeRO-3\n"
          "  blocks.0.up.weight [7, 5] dim 0: 0:4 4:7\n"
          "  blocks.0.up.bias [7] dim 0: 0:4 4:7\n"
          "blocks.0 (f32) on mesh(ep=2, dp=2, ranks=[0,2,1,3]): f32 shards, "
          "gathered as f32, gradients reduced as f32, over 2 ranks, replicated "
          "2 times; ZeRO-3; separate from blocks.0 (f32) on mesh(dp=2, ep=2): "
          "mesh\n"
          "  blocks.0.down.weight [5, 7] dim 0: 0:3 3:5\n"
          "blocks.0 (f32): f32 shards, gathered as f32, gradients reduced as "
          "f32, over 4 ranks; ZeRO-3; separate from blocks.0 (f32) on "
          "mesh(dp=2, ep=2): mesh\n"
          "  blocks.0.down.bias [5] dim 0: 0:2 2:4 4:5 5:5\n"));
}

// Each of two pairs of ranks has an expert, "up", which gets the tokens of all
// four ranks. The losses are means over four ranks.
TEST(MeshOfTest, ExpertsAreDividedByTheRanksOfTheBatch) {
  // The expert's mesh is given by mesh_of, or by a FullyShard call of its own.
  for (const bool by_mesh_of : {true, false}) {
    std::vector<std::vector<float>> gradients[2];
    for (const bool explicit_factor : {false, true}) {
      OnMesh(
          {{"dp", 2}, {"ep", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
            CH_ASSIGN_OR_RETURN(const DeviceMesh experts, mesh.Slice("dp"));
            CH_ASSIGN_OR_RETURN(const DeviceMesh all,
                                mesh.Flatten(mesh.axis_names(), "all"));
            TestModel model(1, 5, 7, 3);
            model.FillWithIntegers();
            FullyShardOptions options;
            if (explicit_factor) options.reduction.divide_factor = 4;
            if (by_mesh_of) {
              options.mesh_of = [&](const nn::Parameter& p) {
                return p.name().find("up.") != std::string::npos
                           ? std::optional<DeviceMesh>(experts)
                           : std::nullopt;
              };
              CH_RETURN_IF_ERROR(FullyShard(*model.blocks()[0], all, options));
              options.mesh_of = nullptr;
            } else {
              CH_RETURN_IF_ERROR(
                  FullyShard(*model.blocks()[0], experts, options));
            }
            CH_RETURN_IF_ERROR(FullyShard(model, all, options));
            const int rank = mesh.world().rank();
            CH_RETURN_IF_ERROR(
                Backward(Sum(model.Forward(BatchOf(rank, 4, 0)))));
            std::vector<std::vector<float>> here;
            for (nn::Parameter* p : model.Parameters()) {
              here.push_back(FullTensor(p->grad()).ToVector<float>());
            }
            if (rank == 0) gradients[explicit_factor] = here;
            return absl::OkStatus();
          });
    }
    EXPECT_FALSE(gradients[0].empty());
    EXPECT_EQ(gradients[0], gradients[1]) << by_mesh_of;
  }
}

// If a mesh has ranks outside of FullyShard's, the batch's size is unknown.
TEST(MeshOfTest, RequiresADivisorIfTheDefaultIsWrong) {
  OnMesh({{"a", 2}, {"b", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh a, mesh.Slice("a"));
    TestModel model(1, 5, 7, 3);
    FullyShardOptions options;
    options.mesh_of = [&](const nn::Parameter&) { return mesh; };
    CH_EXPECT_THAT(
        std::string(FullyShard(model, a, options).message()),
        ::testing::AllOf(
            HasSubstr("mesh_of gives parameter "),
            HasSubstr("FullyShardOptions::reduction.divide_factor")));
    options.reduction.divide_factor = 4;
    return FullyShard(model, a, options);
  });
}

TEST(MeshOfTest, RefusesAMeshOfThreeAxes) {
  OnMesh({{"a", 1}, {"b", 1}, {"fsdp", 2}},
         [](const DeviceMesh& mesh) -> absl::Status {
           CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
           TestModel model(1, 5, 7, 3);
           FullyShardOptions options;
           options.mesh_of = [&](const nn::Parameter&) { return mesh; };
           CH_EXPECT_THAT(
               std::string(FullyShard(model, fsdp, options).message()),
               HasSubstr("not mesh(a=1, b=1, fsdp=2)"));
           options.mesh_of = nullptr;
           return FullyShard(model, fsdp, options);
         });
}

}  // namespace
}  // namespace crosshatch::fsdp
