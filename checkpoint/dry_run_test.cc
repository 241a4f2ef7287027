// SPDX-License-Identifier: Apache-2.0

// Dry runs plan and check saves and loads, also of states too large for this
// machine.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/checkpoint/index.h"
#include "crosshatch/checkpoint/safetensors.h"
#include "crosshatch/checkpoint/save_plan.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
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
  const std::string dir = FreshDir("dry_load");
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
        // Each rank would read a row of three elements.
        EXPECT_EQ(stats.bytes_read, 3 * 4);
        // The rank's row is in one of the two files.
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

const nn::LlamaConfig kTwoBillion = {.dim = 2560,
                                     .layers = 24,
                                     .heads = 20,
                                     .kv_heads = 4,
                                     .ffn = 8192,
                                     .vocab = 32000};

int64_t ElementsOf(nn::Module& model) {
  int64_t elements = 0;
  for (const nn::Parameter* parameter : model.Parameters()) {
    elements += parameter->data().numel();
  }
  return elements;
}

/// Dry-runs a rank of a model that is sharded over `data_axes` and tp, with an
/// optimizer after one step.
/// \param body receives the run and its number of parameters.
absl::Status DryRun(const FakeOptions& rank, const std::vector<MeshAxis>& axes,
                    const std::vector<std::string>& data_axes,
                    const std::function<absl::Status(World&, nn::CombinedState&,
                                                     int64_t)>& body) {
  return RunFake(rank, [&](World& world) -> absl::Status {
    CH_ASSIGN_OR_RETURN(const DeviceMesh mesh, InitDeviceMesh(world, axes));
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice(data_axes));
    nn::Llama model(kTwoBillion);
    CH_RETURN_IF_ERROR(
        tp::ParallelizeModule(model, tp, tp::LlamaPlan(kTwoBillion)));
    const fsdp::FullyShardOptions options = {.extension =
                                                 DTensorExtensions::Create()};
    for (nn::Module& block : model.blocks()) {
      CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp, options));
    }
    CH_RETURN_IF_ERROR(fsdp::FullyShard(model, fsdp, options));
    CH_RETURN_IF_ERROR(model.Materialize({}));
    nn::AdamW optimizer(model.Parameters(), {.lr = 1e-3});
    const Tensor tokens = Zeros({16, 8}, kInt64);
    CH_RETURN_IF_ERROR(Backward(CrossEntropy(model.Forward(tokens), tokens)));
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    nn::ModuleState of_model(model);
    int64_t step = 1;
    nn::BoundValues values({{"step", &step}});
    nn::CombinedState run(
        {{"model", &of_model}, {"optimizer", &optimizer}, {"run", &values}});
    world.context().allocator().ResetPeaks();
    return body(world, run, ElementsOf(model));
  });
}

/// Writes the files of `plan` to `dir`, with holes instead of elements, so that
/// they take no disk space.
void WriteHollow(const SavePlan& plan, const std::string& dir) {
  fs::create_directories(dir);
  const absl::StatusOr<std::string> index = FormatIndex(plan.index);
  ASSERT_TRUE(index.ok()) << index.status();
  std::ofstream(dir + "/" + kIndexFile) << *index;
  for (int rank = 0; rank < plan.index.ranks; ++rank) {
    if (plan.FileOf(rank) < 0) continue;
    const std::string path = absl::StrCat(
        dir, "/", plan.index.files[static_cast<size_t>(plan.FileOf(rank))]);
    const absl::StatusOr<std::string> start =
        SafetensorsStart(path, plan.InfosOf(rank));
    ASSERT_TRUE(start.ok()) << start.status();
    std::ofstream(path, std::ios::binary) << *start;
    fs::resize_file(path,
                    start->size() + static_cast<size_t>(plan.BytesOf(rank)));
  }
}

// A run of two billion parameters, written by one mesh and read by another.
TEST(DryRunTest, PlansTheStateOfATwoBillionParameterLlama) {
  CH_SKIP_ON(TestEngine::kMpi, "changes files between jobs, as one process");
  const std::string dir = FreshDir("two_billion");
  absl::Status status = DryRun(
      {.world_size = 64, .rank = 5}, {{"replicate", 2}, {"fsdp", 8}, {"tp", 4}},
      {"replicate", "fsdp"},
      [&](World& world, nn::CombinedState& run,
          int64_t parameters) -> absl::Status {
        EXPECT_GT(parameters, int64_t{2'000'000'000});
        const auto& allocator = world.context().allocator();
        const int64_t before = allocator.stats().current_total;
        SaveStats stats;
        CH_RETURN_IF_ERROR(
            SaveCheckpoint(world, run, "/nowhere", {.stats = &stats}));
        EXPECT_FALSE(fs::exists("/nowhere"));
        // Planning allocates nothing.
        EXPECT_EQ(allocator.stats().peak_total, before);
        CH_ASSIGN_OR_RETURN(const nn::StateDict state, run.State());
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
        // Balanced up to the largest shard that two ranks hold.
        const int64_t largest = kTwoBillion.vocab * kTwoBillion.dim / 8 * 4;
        EXPECT_LE(most, all / 64 + largest);
        CH_ASSIGN_OR_RETURN(const std::string text, FormatIndex(plan.index));
        EXPECT_LT(text.size(), 2'000'000u);
        WriteHollow(plan, dir);
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  status = DryRun(
      {.world_size = 36, .rank = 31}, {{"fsdp", 12}, {"tp", 3}}, {"fsdp"},
      [&](World& world, nn::CombinedState& run, int64_t) -> absl::Status {
        const auto& allocator = world.context().allocator();
        const int64_t before = allocator.stats().current_total;
        LoadStats stats;
        CH_RETURN_IF_ERROR(LoadCheckpoint(world, run, dir,
                                          {.verify = false, .stats = &stats}));
        EXPECT_EQ(allocator.stats().peak_total, before);
        CH_ASSIGN_OR_RETURN(const nn::StateDict state, run.State());
        int64_t held = 0;
        for (const auto& [name, entry] : state.entries()) {
          if (const auto* tensor = std::get_if<Tensor>(&entry)) {
            held += LocalTensor(*tensor).numel() * 4;
          }
        }
        EXPECT_EQ(stats.bytes_read, held);
        EXPECT_EQ(stats.bytes_hashed, 0);
        EXPECT_GT(stats.files_opened, 0);
        EXPECT_LT(stats.files_opened, 64);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  fs::remove_all(dir);
}

}  // namespace
}  // namespace crosshatch::checkpoint
