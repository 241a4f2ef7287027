// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<Parameter> Ready(const std::string& name, const Tensor& data) {
  auto parameter = std::make_unique<Parameter>(
      data.sizes(), kFloat32, Initializer{Initializer::Kind::kZeros});
  parameter->set_name(name);
  parameter->set_data(data);
  return parameter;
}

Tensor Values(std::vector<float> values) {
  return FromValues<float>({static_cast<int64_t>(values.size())},
                           absl::MakeConstSpan(values));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(GradScalerTest, StepsAsWithoutScaling) {
  std::vector<float> weights[2];
  for (const bool scaled : {false, true}) {
    const auto p = Ready("p", Values({1, -2, 3}));
    AdamW optimizer({p.get()}, {.lr = 0.25});
    GradScaler scaler;
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = Sum(Square(p->data()));
      ASSERT_TRUE(Backward(scaled ? scaler.Scale(loss) : loss).ok());
      if (scaled) {
        EXPECT_EQ(*scaler.Step(optimizer), true);
        ASSERT_TRUE(scaler.Update().ok());
      } else {
        ASSERT_TRUE(optimizer.Step().ok());
      }
      optimizer.ZeroGrad();
    }
    weights[scaled] = p->data().ToVector<float>();
  }
  // The scale is a power of two, so scaling is exact.
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(GradScalerTest, GrowsAndBacksOff) {
  const auto p = Ready("p", Values({1}));
  AdamW optimizer({p.get()}, {});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  std::vector<double> scales;
  std::vector<bool> steps;
  for (const float gradient : {1.0f, kInfinity, 1.0f, 1.0f, 1.0f, -kInfinity,
                               std::numeric_limits<float>::quiet_NaN()}) {
    p->set_grad(Values({gradient}));
    const absl::StatusOr<bool> stepped = scaler.Step(optimizer);
    ASSERT_TRUE(stepped.ok()) << stepped.status();
    steps.push_back(*stepped);
    ASSERT_TRUE(scaler.Update().ok());
    scales.push_back(scaler.scale());
  }
  EXPECT_THAT(steps, ElementsAre(true, false, true, true, true, false, false));
  EXPECT_THAT(scales, ElementsAre(8, 4, 4, 8, 8, 4, 2));
  EXPECT_EQ(optimizer.state(0).step, 4);
  const GradScalerState state = scaler.state();
  GradScaler resumed;
  resumed.set_state(state);
  EXPECT_EQ(resumed.scale(), 2);
}

TEST(GradScalerTest, HoldsToItsOrder) {
  const auto p = Ready("p", Values({1}));
  AdamW optimizer({p.get()}, {});
  GradScaler scaler({.init_scale = 4});
  EXPECT_TRUE(absl::IsFailedPrecondition(scaler.Update()));
  p->set_grad(Values({8}));
  ASSERT_TRUE(scaler.Unscale(optimizer).ok());
  EXPECT_THAT(p->grad().ToVector<float>(), ElementsAre(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(scaler.Unscale(optimizer)));
  EXPECT_TRUE(*scaler.Step(optimizer));
  EXPECT_THAT(p->grad().ToVector<float>(), ElementsAre(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(scaler.Step(optimizer).status()));
  EXPECT_TRUE(scaler.Update().ok());
}

TEST(GradScalerTest, EveryRankDetectsAnOverflowOfOne) {
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    CH_ASSIGN_OR_RETURN(DeviceMesh tp, mesh.Slice("tp"));
    // One parameter is sharded over ranks 0 and 1, one over ranks 2 and 3, one
    // over all.
    const auto on_tp = [&](float value) {
      return MakeDTensor(Values({value}), tp,
                         Layout::Replicated(tp.layout(), 1).WithShard(0, 0),
                         {2});
    };
    const auto on_all = [&](float value) {
      return MakeDTensor(
          Values({value}), mesh,
          Layout::Replicated(mesh.layout(), 1).WithShard(0, 0).WithShard(1, 0),
          {4});
    };
    const auto a = Ready("a", on_tp(1));
    const auto b = Ready("b", on_all(1));
    AdamW optimizer({a.get(), b.get()}, {});
    GradScaler scaler;
    for (const int bad_rank : {-1, 0, 3}) {
      a->set_grad(on_tp(world.rank() == bad_rank ? kInfinity : 1.0f));
      b->set_grad(on_all(1));
      CH_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer));
      CH_EXPECT_EQ(stepped, bad_rank < 0) << world.rank();
      CH_RETURN_IF_ERROR(scaler.Update());
    }
    CH_EXPECT_EQ(scaler.scale(), 65536 / 4);
    return absl::OkStatus();
  });
}

// Which ranks have gradients, and on which one they overflowed.
TEST(GradScalerTest, ARankWithoutGradientsDetectsAnOverflow) {
  for (int with = 1; with < 8; ++with) {
    OnMesh({{"fsdp", 3}}, [with](const DeviceMesh& mesh) -> absl::Status {
      World& world = mesh.world();
      const auto shard = [&](float value) {
        return MakeDTensor(Values({value}), mesh,
                           Layout::Replicated(mesh.layout(), 1).WithShard(0, 0),
                           {3});
      };
      const auto p = Ready("p", shard(1));
      AdamW optimizer({p.get()}, {});
      GradScaler scaler;
      for (int bad_rank = -1; bad_rank < 3; ++bad_rank) {
        if (bad_rank >= 0 && (with >> bad_rank & 1) == 0) continue;
        if ((with >> world.rank() & 1) != 0) {
          p->set_grad(shard(world.rank() == bad_rank ? kInfinity : 1.0f));
        }
        const double scale = scaler.scale();
        CH_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer));
        CH_EXPECT_EQ(stepped, bad_rank < 0) << world.rank();
        CH_RETURN_IF_ERROR(scaler.Update());
        CH_EXPECT_EQ(scaler.scale(), bad_rank < 0 ? scale : scale / 2);
      }
      return absl::OkStatus();
    });
  }
}

// The parameters of the optimizer of a pipeline's second stage.
enum class Stage { kShards, kPlain, kFrozen, kPlainAndFrozen, kNothing };

TEST(GradScalerTest, StagesMayHoldNothingThatIsDistributed) {
  for (const Stage stage : {Stage::kShards, Stage::kPlain, Stage::kFrozen,
                            Stage::kPlainAndFrozen, Stage::kNothing}) {
    OnMesh({{"pp", 2}, {"fsdp", 2}},
           [stage](const DeviceMesh& mesh) -> absl::Status {
             CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
             const auto shard = [&](float value) {
               return MakeDTensor(
                   Values({value}), fsdp,
                   Layout::Replicated(fsdp.layout(), 1).WithShard(0, 0), {2});
             };
             const bool second = mesh.coordinate()->at(0) == 1;
             const auto of_shards = Ready("sharded", shard(1));
             const auto plain = Ready("plain", Values({1}));
             const auto frozen = Ready("frozen", shard(1));
             frozen->set_requires_grad(false);
             std::vector<Parameter*> held;
             if (!second || stage == Stage::kShards) {
               held.push_back(of_shards.get());
             } else {
               if (stage == Stage::kPlain || stage == Stage::kPlainAndFrozen) {
                 held.push_back(plain.get());
               }
               if (stage == Stage::kFrozen || stage == Stage::kPlainAndFrozen) {
                 held.push_back(frozen.get());
               }
             }
             AdamW optimizer(held, {});
             GradScaler scaler;
             const int rank = mesh.world().rank();
             for (int bad_rank = -1; bad_rank < 4; ++bad_rank) {
               const float value = rank == bad_rank ? kInfinity : 1.0f;
               of_shards->set_grad(shard(value));
               plain->set_grad(Values({value}));
               const bool overflows =
                   bad_rank >= 0 &&
                   (bad_rank < 2 ||
                    (stage != Stage::kFrozen && stage != Stage::kNothing));
               const double scale = scaler.scale();
               CH_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer));
               CH_EXPECT_EQ(stepped, !overflows)
                   << static_cast<int>(stage) << ", " << bad_rank;
               CH_RETURN_IF_ERROR(scaler.Update());
               CH_EXPECT_EQ(scaler.scale(), overflows ? scale / 2 : scale);
             }
             return absl::OkStatus();
           });
  }
}

TEST(GradScalerTest, IsAState) {
  const auto p = Ready("p", Values({1}));
  AdamW optimizer({p.get()}, {});
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  for (int step = 0; step < 2; ++step) {
    p->set_grad(Values({1}));
    ASSERT_TRUE(scaler.Step(optimizer).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(scaler.State().status()));
    ASSERT_TRUE(scaler.Update().ok());
  }
  const absl::StatusOr<StateDict> kept = scaler.State();
  ASSERT_TRUE(kept.ok());
  GradScaler resumed({.growth_interval = 3});
  ASSERT_TRUE(resumed.StateToFill(NamesOf(*kept)).ok());
  ASSERT_TRUE(resumed.Restore(*kept).ok());
  p->set_grad(Values({1}));
  ASSERT_TRUE(resumed.Step(optimizer).ok());
  ASSERT_TRUE(resumed.Update().ok());
  // The third iteration without overflow grows the scale.
  EXPECT_EQ(resumed.scale(), 16);

  EXPECT_TRUE(absl::IsInvalidArgument(resumed.StateToFill({"scale"}).status()));
  StateDict bad = *kept;
  *bad.Find("scale") = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(absl::IsInvalidArgument(resumed.Restore(bad)));
  EXPECT_EQ(resumed.scale(), 16);
}

TEST(GradScalerTest, RanksOfASubsetStepTogether) {
  for (const std::vector<int>& ranks :
       {std::vector<int>{1, 2}, std::vector<int>{2, 3}}) {
    RunRanks(ranks[1] + 1, [&](World& world) -> absl::Status {
      const auto at = std::find(ranks.begin(), ranks.end(), world.rank());
      if (at == ranks.end()) return absl::OkStatus();
      CH_ASSIGN_OR_RETURN(World* const stage, world.Subset(ranks));
      CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                          InitDeviceMesh(*stage, {{"fsdp", 2}}));
      const auto shard = [&](float value) {
        return MakeDTensor(Values({value}), mesh,
                           Layout::Replicated(mesh.layout(), 1).WithShard(0, 0),
                           {2});
      };
      const auto p = Ready("p", shard(1));
      AdamW optimizer({p.get()}, {});
      GradScaler scaler;
      for (const int bad_rank : {ranks[0], ranks[1], -1}) {
        p->set_grad(shard(world.rank() == bad_rank ? std::nanf("") : 1.0f));
        CH_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer));
        CH_EXPECT_EQ(stepped, bad_rank < 0) << world.rank();
        CH_RETURN_IF_ERROR(scaler.Update());
      }
      CH_EXPECT_EQ(scaler.scale(), 65536 / 4);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace crosshatch::nn
