// SPDX-License-Identifier: Apache-2.0

// Key heads of which ranks hold copies, in a checkpoint: each is there once,
// and any other mesh reads them.

#include <cstdint>
#include <string>
#include <vector>

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
#include "crosshatch/tp/llama_plan.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

nn::LlamaConfig Config() {
  return {
      .dim = 32, .layers = 1, .heads = 8, .kv_heads = 2, .ffn = 7, .vocab = 11};
}

// FSDP over tensor parallelism.
absl::Status Spread(const DeviceMesh& mesh, nn::Llama& model) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  CH_RETURN_IF_ERROR(
      tp::ParallelizeModule(model, tp, tp::LlamaPlan(model.config())));
  return fsdp::FullyShard(model, fsdp,
                          {.extension = DTensorExtensions::Create()});
}

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
  const std::string dir = absl::StrCat(::testing::TempDir(), "/key_copies");
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
