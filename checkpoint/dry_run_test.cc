// SPDX-License-Identifier: Apache-2.0

// What is planned and checked without a run: also of what is too large for this
// machine.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/adamw.h"
#include "crosshatch/nn/bound_values.h"
#include "crosshatch/nn/combined_state.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/cross_entropy.h"
#include "crosshatch/tensor/rank_context.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::checkpoint {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<nn::StateDict> RowsOn(const DeviceMesh& mesh, int64_t rows) {
  CH_ASSIGN_OR_RETURN(const Layout layout,
                      Layout::FromPlacements(mesh.layout(), 2, {Shard(0)}));
  nn::StateDict state;
  CH_RETURN_IF_ERROR(state.Add(
      "w", MakeDTensor(Full(layout.LocalShape({rows, 3}, *mesh.coordinate()),
                            0.5, kFloat32),
                       mesh, layout, {rows, 3})));
  return state;
}

TEST(DryRunTest, ChecksALoadAndReadsNothing) {
  const std::string dir = ::testing::TempDir() + "dry_load";
  fs::remove_all(dir);
  OnMesh({{"a", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    CH_ASSIGN_OR_RETURN(nn::StateDict state, RowsOn(mesh, 5));
    CH_RETURN_IF_ERROR(state.Add("step", int64_t{7}));
    return SaveCheckpoint(mesh.world(), state, dir);
  });
  const absl::Status status =
      RunFake({.world_size = 6, .rank = 4}, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                            InitDeviceMesh(world, {{"a", 6}}));
        CH_ASSIGN_OR_RETURN(nn::StateDict state, RowsOn(mesh, 5));
        LoadStats stats;
        const LoadCheckpointOptions options = {.partial = true,
                                               .stats = &stats};
        CH_RETURN_IF_ERROR(LoadCheckpoint(world, state, dir, options));
        EXPECT_EQ(stats.bytes_read, 0);
        // The row of this rank is in one of the two.
        EXPECT_EQ(stats.files_opened, 1);
        EXPECT_EQ(stats.unexpected, std::vector<std::string>{"step"});
        CH_ASSIGN_OR_RETURN(state, RowsOn(mesh, 6));
        EXPECT_EQ(
            LoadCheckpoint(world, state, dir, options),
            absl::InvalidArgumentError(
                dir + ": \"w\" has shape [5, 3], and the state's is [6, 3]"));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// Of a run as it is: model, sharding, optimizer after a step.
TEST(DryRunTest, PlansTheStateOfATwoBillionParameterLlama) {
  const nn::LlamaConfig config = {.dim = 2560,
                                  .layers = 24,
                                  .heads = 20,
                                  .kv_heads = 4,
                                  .ffn = 8192,
                                  .vocab = 32000};
  const absl::Status status =
      RunFake({.world_size = 64, .rank = 5}, [&](World& world) -> absl::Status {
        CH_ASSIGN_OR_RETURN(
            const DeviceMesh mesh,
            InitDeviceMesh(world, {{"replicate", 2}, {"fsdp", 8}, {"tp", 4}}));
        CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
        CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp,
                            mesh.Slice({"replicate", "fsdp"}));
        nn::Llama model(config);
        CH_RETURN_IF_ERROR(
            tp::ParallelizeModule(model, tp, tp::LlamaPlan(config)));
        const fsdp::FullyShardOptions options = {
            .extension = DTensorExtensions::Create()};
        for (nn::Module& block : model.blocks()) {
          CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
        }
        CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
        CH_RETURN_IF_ERROR(model.Materialize({}));
        int64_t parameters = 0;
        for (const nn::Parameter* parameter : model.Parameters()) {
          parameters += parameter->data().numel();
        }
        EXPECT_GT(parameters, int64_t{2'000'000'000});
        nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
        const Tensor tokens = Zeros({16, 8}, kInt64);
        CH_RETURN_IF_ERROR(
            Backward(CrossEntropy(model.Forward(tokens), tokens)));
        CH_RETURN_IF_ERROR(optimizer.Step());
        optimizer.ZeroGrad();

        nn::ModuleState of_model(model);
        int64_t step = 1;
        nn::BoundValues values({{"step", &step}});
        nn::CombinedState run({{"model", &of_model},
                               {"optimizer", &optimizer},
                               {"run", &values}});
        CH_ASSIGN_OR_RETURN(const nn::StateDict state, run.State());
        auto& allocator = world.context().allocator();
        allocator.ResetPeaks();
        const int64_t before = allocator.stats().current_total;
        SaveStats stats;
        CH_RETURN_IF_ERROR(
            SaveCheckpoint(world, run, "/nowhere", {.stats = &stats}));
        EXPECT_FALSE(fs::exists("/nowhere"));
        // Nothing is taken for it.
        EXPECT_EQ(allocator.stats().peak_total, before);
        CH_ASSIGN_OR_RETURN(const SavePlan plan, PlanOf(world, state));
        EXPECT_EQ(stats.bytes_written, plan.BytesOf(5));
        // A parameter and two moments in float32, each element once.
        EXPECT_EQ(plan.index.bytes(), 3 * 4 * parameters);
        int64_t most = 0;
        int64_t all = 0;
        for (int rank = 0; rank < 64; ++rank) {
          most = std::max(most, plan.BytesOf(rank));
          all += plan.BytesOf(rank);
        }
        EXPECT_EQ(all, plan.index.bytes());
        // Balanced but for the largest shard that one of two may have.
        const int64_t largest = config.vocab * config.dim / 8 * 4;
        EXPECT_LE(most, all / 64 + largest);
        CH_ASSIGN_OR_RETURN(const std::string text, FormatIndex(plan.index));
        EXPECT_LT(text.size(), 2'000'000u);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace crosshatch::checkpoint
