// SPDX-License-Identifier: Apache-2.0

/// \file
/// Checkpoints of a Llama and its optimizer, trained with FSDP over tensor
/// parallelism: their content does not depend on the mesh, and any other mesh
/// loads them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/extensions/dtensor_extensions.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/models/llama.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tests/llama_training_testutil.h"
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

nn::LlamaConfig Config() {
  return {
      .dim = 32, .layers = 1, .heads = 8, .kv_heads = 2, .ffn = 7, .vocab = 11};
}

// Applies FSDP over tensor parallelism, with replicas along "replicate" if that
// axis exists. Each slice along other axes has its own model.
absl::Status Spread(const DeviceMesh& mesh, nn::Llama& model,
                    std::optional<fsdp::RaggedShard> ragged = std::nullopt) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  std::vector<std::string> data_axes = {"fsdp"};
  if (mesh.layout().AxisIndex("replicate").ok()) {
    data_axes.insert(data_axes.begin(), "replicate");
  }
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice(data_axes));
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
  return fsdp::FullyShard(model, fsdp,
                          {.ragged_shard = std::move(ragged),
                           .extension = DTensorExtensions::Create()});
}

// Returns a config with sizes that the meshes do not divide.
nn::LlamaConfig UnevenConfig(bool tied) {
  nn::LlamaConfig config = {.dim = 30,
                            .layers = 1,
                            .heads = 6,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .ffn = 7,
                            .vocab = 11};
  config.tied_embeddings = tied;
  return config;
}

// Creates a run on `mesh` whose parameters have no values yet.
absl::Status Begin(const DeviceMesh& mesh, LlamaTraining& run,
                   std::optional<fsdp::RaggedShard> ragged = std::nullopt) {
  CH_RETURN_IF_ERROR(Spread(mesh, run.model, std::move(ragged)));
  run.Begin();
  return absl::OkStatus();
}

class LlamaCheckpointTest : public ::testing::TestWithParam<bool> {};

// Returns the shards of the i-th run: even ones, ragged ones by rows, or by
// blocks that keep small matrices whole.
std::optional<fsdp::RaggedShard> ShardsOf(size_t i) {
  if (i % 3 == 0) return std::nullopt;
  if (i % 3 == 1) return fsdp::RaggedShard();
  return fsdp::RaggedShard{
      .rows_per_block = [](const nn::Parameter&) { return 9; }};
}

// Saves and loads parameters and moments over twelve pairs of meshes with one
// to four axes, between even and ragged shards.
TEST_P(LlamaCheckpointTest, IsUnchangedOnAnotherMesh) {
  const bool tied = GetParam();
  const std::vector<MeshAxes> meshes = {
      {{"fsdp", 1}, {"tp", 1}},
      {{"fsdp", 2}, {"tp", 2}},
      {{"fsdp", 1}, {"tp", 3}},
      {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}},
      {{"other", 2}, {"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
      {{"tp", 2}, {"fsdp", 3}},
  };
  const auto dir_of = [&](size_t save) {
    return absl::StrCat(::testing::TempDir(), "/", tied ? "tied" : "untied",
                        save);
  };
  OnMesh(meshes[1], [&](const DeviceMesh& mesh) -> absl::Status {
    LlamaTraining run(UnevenConfig(tied));
    CH_RETURN_IF_ERROR(Begin(mesh, run));
    CH_RETURN_IF_ERROR(run.model.Materialize({.seed = 3}));
    CH_RETURN_IF_ERROR(run.Step());
    CH_RETURN_IF_ERROR(run.Step());
    return checkpoint::SaveCheckpoint(mesh.world(), *run.state, dir_of(0));
  });
  const auto trained = HashesOf(dir_of(0));
  ASSERT_TRUE(trained.ok()) << trained.status();
  // Each parameter and its two moments.
  EXPECT_EQ(trained->size(), (tied ? 11u : 12u) * 3);
  const std::vector<size_t> way = {0, 2, 4, 1, 3, 5, 0, 4, 2, 3, 1, 5, 1};
  for (size_t i = 0; i < way.size(); ++i) {
    OnMesh(meshes[way[i]], [&](const DeviceMesh& mesh) -> absl::Status {
      LlamaTraining run(UnevenConfig(tied));
      CH_RETURN_IF_ERROR(Begin(mesh, run, ShardsOf(i + 1)));
      CH_RETURN_IF_ERROR(
          checkpoint::LoadCheckpoint(mesh.world(), *run.state, dir_of(i)));
      return checkpoint::SaveCheckpoint(mesh.world(), *run.state,
                                        dir_of(i + 1));
    });
    const auto hashes = HashesOf(dir_of(i + 1));
    ASSERT_TRUE(hashes.ok()) << hashes.status();
    EXPECT_EQ(*hashes, *trained) << "on mesh " << way[i];
  }
}

// Four steps, compared with two, a checkpoint and two more on the same mesh.
TEST_P(LlamaCheckpointTest, ResumesInTheSameBits) {
  const bool tied = GetParam();
  const std::string dir = FreshDir(absl::StrCat("on", tied));
  OnMesh({{"fsdp", 2}, {"tp", 2}}, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    LlamaTraining whole(UnevenConfig(tied));
    CH_RETURN_IF_ERROR(Begin(mesh, whole));
    CH_RETURN_IF_ERROR(whole.model.Materialize({.seed = 3}));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        CH_RETURN_IF_ERROR(
            checkpoint::SaveCheckpoint(world, *whole.state, dir));
      }
      CH_RETURN_IF_ERROR(whole.Step());
    }
    LlamaTraining again(UnevenConfig(tied));
    CH_RETURN_IF_ERROR(Begin(mesh, again));
    CH_RETURN_IF_ERROR(checkpoint::LoadCheckpoint(world, *again.state, dir));
    for (int step = 0; step < 2; ++step) CH_RETURN_IF_ERROR(again.Step());
    CH_RETURN_IF_ERROR(
        checkpoint::SaveCheckpoint(world, *whole.state, dir + "whole"));
    return checkpoint::SaveCheckpoint(world, *again.state, dir + "again");
  });
  const auto whole = HashesOf(dir + "whole");
  const auto again = HashesOf(dir + "again");
  ASSERT_TRUE(whole.ok() && again.ok()) << whole.status() << again.status();
  EXPECT_EQ(*again, *whole);
  EXPECT_NE(*again, *HashesOf(dir));
}

INSTANTIATE_TEST_SUITE_P(Tied, LlamaCheckpointTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "tied" : "untied";
                         });

// A checkpoint contains replicated key heads once.

using Values = std::vector<std::vector<float>>;

TEST(KeyCopiesTest, AreOneInACheckpoint) {
  nn::Llama one(Config());
  ASSERT_TRUE(one.Materialize({.seed = 3}).ok());
  Values expected;
  int64_t bytes = 0;
  for (nn::Parameter* p : one.Parameters()) {
    expected.push_back(p->data().ToVector<float>());
    bytes += p->data().numel() * static_cast<int64_t>(sizeof(float));
  }
  const std::string dir = FreshDir("key_copies");
  OnMesh({{"fsdp", 2}, {"tp", 4}}, [&](const DeviceMesh& mesh) -> absl::Status {
    World& world = mesh.world();
    nn::Llama model(Config());
    CH_RETURN_IF_ERROR(Spread(mesh, model));
    CH_RETURN_IF_ERROR(model.Materialize({.seed = 3}));
    for (nn::Parameter* p : model.Parameters()) {
      if (p->name() != "layers.0.self_attn.k_proj.weight") continue;
      CH_EXPECT_EQ(MeshOf(p->data()).ToString(),
                   "mesh(fsdp=2, tp_unit=2, tp_copy=2)");
      CH_EXPECT_EQ(LayoutOf(p->data()).ToString(), "[_S(0,2),S(0)/4,R]");
    }
    nn::ModuleState state(model);
    CH_ASSIGN_OR_RETURN(const nn::StateDict dict, state.State());
    CH_ASSIGN_OR_RETURN(const checkpoint::SavePlan plan,
                        checkpoint::PlanOf(world, dict));
    int64_t written = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      written += plan.BytesOf(rank);
    }
    CH_EXPECT_EQ(written, bytes);
    return checkpoint::SaveCheckpoint(world, state, dir);
  });
  for (const int tp : {1, 3}) {
    OnMesh({{"fsdp", 2}, {"tp", tp}},
           [&](const DeviceMesh& mesh) -> absl::Status {
             nn::Llama model(Config());
             CH_RETURN_IF_ERROR(Spread(mesh, model));
             nn::ModuleState state(model);
             CH_RETURN_IF_ERROR(
                 checkpoint::LoadCheckpoint(mesh.world(), state, dir));
             Values values;
             for (nn::Parameter* p : model.Parameters()) {
               values.push_back(FullTensor(p->data()).ToVector<float>());
             }
             CH_EXPECT_EQ(values, expected);
             return absl::OkStatus();
           });
  }
}

}  // namespace
}  // namespace crosshatch
