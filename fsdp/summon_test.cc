// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/summon.h"

#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

template <typename Body>
void OnSharded(Body body, uint64_t adversarial_seed = 0) {
  OnMesh({{"fsdp", kRanks}},
         [&](const DeviceMesh& mesh) -> absl::Status {
           World& world = mesh.world();
           TestModel model(2, 5, 7, 3);
           model.FillWithIntegers();
           for (auto& block : model.blocks()) {
             CH_RETURN_IF_ERROR(FullyShard(*block, mesh));
           }
           CH_RETURN_IF_ERROR(FullyShard(model, mesh));
           return body(world, model);
         },
         {.test = {.adversarial_seed = adversarial_seed}});
}

std::vector<float> ValuesOf(const Tensor& t) {
  NoGrad no_grad;
  return FullTensor(t).ToVector<float>();
}

TEST(SummonFullParametersTest, ReadsAndWritesBack) {
  for (const uint64_t seed : {0, 3}) {
    OnSharded(
        [](World&, TestModel& model) -> absl::Status {
          TestModel whole(2, 5, 7, 3);
          whole.FillWithIntegers();
          CH_RETURN_IF_ERROR(
              Backward(Sum(model.Forward(SmallIntegers({4, 5}, 1)))));
          const std::vector<nn::Parameter*> expected = whole.Parameters();
          const std::vector<nn::Parameter*> sharded = model.Parameters();
          CH_ASSIGN_OR_RETURN(auto scope, SummonFullParameters::Begin(
                                              model, {.with_grads = true}));
          CH_EXPECT_EQ(scope->entries().size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            const SummonFullParameters::Entry& entry = scope->entries()[i];
            CH_EXPECT_EQ(entry.parameter.get(), sharded[i]);
            CH_EXPECT_EQ(entry.full.ToVector<float>(),
                         expected[i]->data().ToVector<float>())
                << entry.name;
            NoGrad no_grad;
            AddInPlace(entry.full, FullLike(entry.full, 0.5));
            MulInPlace(entry.grad, 2);
          }
          const std::vector<float> gradient =
              scope->Find("head.weight")->grad.ToVector<float>();
          CH_EXPECT_EQ(scope->Find("nothing"), nullptr);
          CH_RETURN_IF_ERROR(scope->End());
          CH_EXPECT_TRUE(scope->entries().empty());
          CH_RETURN_IF_ERROR(scope->End());
          for (size_t i = 0; i < expected.size(); ++i) {
            std::vector<float> values = expected[i]->data().ToVector<float>();
            for (float& value : values) value += 0.5f;
            CH_EXPECT_EQ(ValuesOf(sharded[i]->data()), values);
          }
          for (nn::Parameter* p : sharded) {
            if (p->name() == "head.weight") {
              CH_EXPECT_EQ(ValuesOf(p->grad()), gradient);
            }
          }
          return absl::OkStatus();
        },
        seed);
  }
}

TEST(SummonFullParametersTest, LeavesAllAsItWasWithoutWriteback) {
  OnSharded([](World& world, TestModel& model) -> absl::Status {
    const std::vector<float> before = ValuesOf(model.Parameters()[0]->data());
    RankContext& context = world.context();
    const int64_t held = context.device_allocator().stats().current_total;
    {
      CH_ASSIGN_OR_RETURN(
          const auto scope,
          SummonFullParameters::Begin(model, {.writeback = false,
                                              .rank0_only = true,
                                              .offload_to_cpu = true}));
      // The copies are in host memory, on the first rank only.
      CH_EXPECT_EQ(context.device_allocator().stats().current_total, held);
      CH_EXPECT_EQ(context.host_allocator().stats().current_total > 0,
                   world.rank() == 0);
      const SummonFullParameters::Entry& entry = scope->entries()[0];
      CH_EXPECT_EQ(entry.full.defined(), world.rank() == 0);
      if (world.rank() == 0) {
        CH_EXPECT_EQ(entry.full.ToVector<float>(), before);
        NoGrad no_grad;
        ZeroInPlace(entry.full);
      }
    }
    CH_EXPECT_EQ(ValuesOf(model.Parameters()[0]->data()), before);
    return absl::OkStatus();
  });
}

TEST(SummonFullParametersTest, TakesTheModulesOwnGroupAlone) {
  OnSharded([](World&, TestModel& model) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const auto scope,
                        SummonFullParameters::Begin(model, {.recurse = false}));
    CH_EXPECT_EQ(scope->entries().size(), 2u);
    CH_EXPECT_NE(scope->Find("head.bias"), nullptr);
    return SummonFullParameters::Begin(*model.blocks()[0]).status();
  });
}

TEST(SummonFullParametersTest, RejectsModulesInUse) {
  OnSharded([](World&, TestModel& model) -> absl::Status {
    const auto message = [&](const SummonOptions& options) {
      return std::string(
          SummonFullParameters::Begin(model, options).status().message());
    };
    CH_EXPECT_THAT(message({.rank0_only = true}),
                   HasSubstr("set writeback to false"));
    {
      CH_ASSIGN_OR_RETURN(const auto scope, SummonFullParameters::Begin(model));
      CH_EXPECT_THAT(message({}), HasSubstr("are summoned already"));
    }
    const Tensor y = model.Forward(SmallIntegers({4, 5}, 1));
    CH_EXPECT_THAT(message({}), HasSubstr("the group head is unsharded"));
    // A submodule is in use if its sharded module is.
    CH_EXPECT_THAT(SummonFullParameters::Begin(*model.children().back().second)
                       .status()
                       .message(),
                   HasSubstr("the group head is unsharded"));
    CH_RETURN_IF_ERROR(Backward(Sum(y)));
    return SummonFullParameters::Begin(model).status();
  });
}

TEST(SummonFullParametersTest, StopsAForwardWithin) {
  TestModel model(1, 5, 7, 3);
  model.FillWithIntegers();
  const auto run = [&] {
    StatusOfRanks(1, [&](World& world) -> absl::Status {
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(world, {{"fsdp", 1}}));
      CH_RETURN_IF_ERROR(FullyShard(model, mesh));
      CH_ASSIGN_OR_RETURN(const auto scope, SummonFullParameters::Begin(model));
      CH_ASSIGN_OR_RETURN(auto sharded, ShardedModule::Of(model));
      // Abandons the iteration, but keeps the scope.
      sharded.ResetIteration();
      model.Forward(SmallIntegers({4, 5}, 1));
      return absl::OkStatus();
    }).IgnoreError();
  };
  EXPECT_DEATH(run(), HasSubstr("runs while its full parameters are summoned"));
}

// The mesh of a pipeline stage does not include rank 0 of the world.
TEST(SummonFullParametersTest, TheFirstRankOfTheMeshKeepsThem) {
  RunRanks(3, [](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                        InitDeviceMesh(world, {{"fsdp", 2}}, {1, 2}));
    if (!mesh.coordinate().has_value()) return absl::OkStatus();
    TestModel model(1, 5, 7, 3);
    model.FillWithIntegers();
    CH_RETURN_IF_ERROR(FullyShard(model, mesh));
    CH_ASSIGN_OR_RETURN(const auto scope,
                        SummonFullParameters::Begin(
                            model, {.writeback = false, .rank0_only = true}));
    CH_EXPECT_EQ(scope->entries()[0].full.defined(), world.rank() == 1);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::fsdp
