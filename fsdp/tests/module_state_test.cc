// SPDX-License-Identifier: Apache-2.0

/// \file
/// The state of a sharded module: its shards, by the names that the module has
/// without FSDP. If the shards are not up to date, or a write would conflict
/// with gathered parameters, an error names the module.

#include "crosshatch/nn/module_state.h"

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/summon.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/ops/in_place.h"
#include "crosshatch/testing/expect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::HasSubstr;

/// Runs `body` with a model sharded in each of the ways.
void OnModels(const std::function<absl::Status(Job&, nn::ModuleState&)>& body) {
  for (const Axes& axes :
       {Axes{{"fsdp", 3}}, Axes{{"replicate", 2}, {"fsdp", 2}}}) {
    OnRanks(axes, [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
      TestModel model(2, 5, 7, 3);
      model.FillWithIntegers();
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(*model.blocks()[1]));
      CH_RETURN_IF_ERROR(ShardAll(model, mesh, Summing()));
      CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
      Job job{model, mesh, root, log};
      nn::ModuleState state(model);
      return body(job, state);
    });
  }
}

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

/// Checks that the state holds the model's shards.
absl::Status CheckShards(Job& job, nn::ModuleState& state) {
  TestModel plain(2, 5, 7, 3);
  plain.FillWithIntegers();
  CH_ASSIGN_OR_RETURN(const nn::StateDict kept, state.State());
  CH_EXPECT_EQ(kept.size(), plain.NamedParameters().size());
  for (const auto& [name, parameter] : plain.NamedParameters()) {
    CH_ASSIGN_OR_RETURN(const Tensor shard, kept.Get<Tensor>(name));
    CH_EXPECT_EQ(MeshOf(shard), job.mesh);
    CH_EXPECT_EQ(FullTensor(shard).ToVector<float>(),
                 parameter->data().ToVector<float>())
        << name;
  }
  return absl::OkStatus();
}

TEST(ModuleStateOfFsdpTest, ReturnsShardsAlsoWhileUnsharded) {
  OnModels([](Job& job, nn::ModuleState& state) -> absl::Status {
    CH_RETURN_IF_ERROR(CheckShards(job, state));
    job.root.Unshard().Wait();
    CH_RETURN_IF_ERROR(CheckShards(job, state));
    CH_ASSIGN_OR_RETURN(const nn::StateDict kept, state.State());
    CH_EXPECT_THAT(MessageOf(state.StateToFill(NamesOf(kept)).status()),
                   HasSubstr("ModuleState: the group head is unsharded"));
    job.root.Reshard();
    CH_EXPECT_OK(state.StateToFill(NamesOf(kept)));
    CH_RETURN_IF_ERROR(Step(job));
    // Gradients do not matter here: the optimizer handles them.
    return CheckShards(job, state);
  });
}

TEST(ModuleStateOfFsdpTest, IsRefusedWhileSummoned) {
  OnModels([](Job& job, nn::ModuleState& state) -> absl::Status {
    {
      CH_ASSIGN_OR_RETURN(const auto scope,
                          SummonFullParameters::Begin(job.model));
      CH_EXPECT_THAT(MessageOf(state.State().status()),
                     HasSubstr("are summoned already; destroy the other "
                               "SummonFullParameters first"));
    }
    return CheckShards(job, state);
  });
}

// Only the root is sharded, and it summons the parameters of its submodules.
TEST(ModuleStateOfFsdpTest, OfAPartIsGuardedByTheModuleThatIsSharded) {
  OnRanks({{"fsdp", 3}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
    TestModel model(2, 5, 7, 3);
    model.FillWithIntegers();
    CH_RETURN_IF_ERROR(FullyShard(model, mesh, Summing()));
    nn::ModuleState part(*model.blocks()[1]);
    CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
    CH_ASSIGN_OR_RETURN(const nn::StateDict kept, part.State());
    root.Unshard().Wait();
    CH_EXPECT_OK(part.State());
    CH_EXPECT_THAT(MessageOf(part.StateToFill(NamesOf(kept)).status()),
                   HasSubstr("is unsharded"));
    root.Reshard();
    {
      CH_ASSIGN_OR_RETURN(const auto scope, SummonFullParameters::Begin(model));
      CH_EXPECT_THAT(MessageOf(part.State().status()),
                     HasSubstr("are summoned already"));
      CH_EXPECT_THAT(MessageOf(part.StateToFill(NamesOf(kept)).status()),
                     HasSubstr("are summoned already"));
    }
    CH_EXPECT_OK(part.StateToFill(NamesOf(kept)));
    return absl::OkStatus();
  });
}

TEST(ModuleStateOfFsdpTest, IsRefusedBetweenAccumulatedBackwards) {
  OnModels([](Job& job, nn::ModuleState& state) -> absl::Status {
    const char* const expected = "has gradients that are not reduced yet";
    CH_RETURN_IF_ERROR(Configure(
        job.model, [&](Settings& s) { s.requires_gradient_sync = false; }));
    CH_RETURN_IF_ERROR(Step(job));
    CH_EXPECT_THAT(MessageOf(state.State().status()), HasSubstr(expected));
    CH_RETURN_IF_ERROR(Configure(
        job.model, [&](Settings& s) { s.requires_gradient_sync = true; }));
    CH_RETURN_IF_ERROR(Step(job));
    CH_RETURN_IF_ERROR(CheckShards(job, state));

    CH_RETURN_IF_ERROR(Configure(
        job.model, [&](Settings& s) { s.requires_all_reduce = false; }));
    CH_RETURN_IF_ERROR(Step(job));
    if (job.mesh.ndim() == 2) {
      CH_EXPECT_THAT(MessageOf(state.State().status()), HasSubstr(expected));
    }
    CH_RETURN_IF_ERROR(Configure(
        job.model, [&](Settings& s) { s.requires_all_reduce = true; }));
    CH_RETURN_IF_ERROR(Step(job));
    return CheckShards(job, state);
  });
}

// Kept unsharded parameters are gathered again if the shards have changed.
TEST(ModuleStateOfFsdpTest, ARestoredModelUsesTheRestoredValues) {
  OnModels([](Job& job, nn::ModuleState& state) -> absl::Status {
    CH_RETURN_IF_ERROR(Step(job));
    CH_ASSIGN_OR_RETURN(const nn::StateDict kept, state.State());
    CH_ASSIGN_OR_RETURN(const nn::StateDict to_fill,
                        state.StateToFill(NamesOf(kept)));
    for (const auto& [name, value] : to_fill.entries()) {
      const NoGrad no_grad;
      ZeroInPlace(LocalTensor(std::get<Tensor>(value)));
    }
    CH_RETURN_IF_ERROR(state.Restore(to_fill));
    CH_EXPECT_EQ(job.Loss(0).ToVector<float>()[0], 0.0f);
    job.root.ResetIteration();
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace crosshatch::fsdp
