// SPDX-License-Identifier: Apache-2.0

/// \file
/// The code of docs/pipeline_stages.md, which prints the text between [name]
/// and [/name].

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/checkpoint/checkpoint.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/loss.h"
#include "crosshatch/nn/module_state.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/nn/optim/clip_grad.h"
#include "crosshatch/nn/state_dict.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace ch = crosshatch;
namespace nn = crosshatch::nn;

namespace {

// A pipeline stage of a model of four layers.
class StageModel final : public nn::Module {
 public:
  StageModel(int64_t begin, int64_t end) {
    // [stage_names]
    for (int64_t i = begin; i < end; ++i) {
      layers_.push_back(&Make<nn::Linear>(absl::StrCat("layers.", i),
                                          {.in = 6, .out = 6, .bias = true}));
    }
    // [/stage_names]
  }

 protected:
  ch::TensorList ForwardImpl(ch::TensorSpan inputs) override {
    ch::Tensor x = inputs[0];
    for (nn::Linear* layer : layers_) x = ch::Gelu(layer->Forward(x));
    return {x};
  }

 private:
  std::vector<nn::Linear*> layers_;
};

// Trains each stage on its own. The norm and the checkpoint cover both.
absl::Status RunStages(ch::World& world, const std::string& dir) {
  // [stage_world]
  // Ranks 0 to 2 have the first layer, ranks 3 and 4 the others.
  const bool first = world.rank() < 3;
  CH_ASSIGN_OR_RETURN(
      ch::World* const stage,
      world.Subset(first ? std::vector<int>{0, 1, 2} : std::vector<int>{3, 4}));
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh data,
                      ch::InitDeviceMesh(*stage, {{"fsdp", stage->size()}}));
  StageModel model(first ? 0 : 1, first ? 1 : 4);
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(model, data));
  CH_RETURN_IF_ERROR(model.Materialize({.seed = 7}));
  // [/stage_world]
  nn::AdamW optimizer(model.Parameters(), {.lr = 1e-2});
  const ch::Interval rows = ch::RowsOf(data, 5);
  const ch::Tensor loss = nn::MeanOverBatch(
      ch::Sum(ch::Square(model.Forward(ch::Ones({rows.size(), 6})))),
      rows.size(), data);
  CH_RETURN_IF_ERROR(ch::Backward(loss));
  // [stage_clip]
  CH_ASSIGN_OR_RETURN(const ch::DeviceMesh all,
                      ch::InitDeviceMesh(world, {{"all", world.size()}}));
  CH_RETURN_IF_ERROR(
      nn::ClipGradNorm(model.Parameters(), 1.0, {.over = all}).status());
  // [/stage_clip]
  CH_RETURN_IF_ERROR(optimizer.Step());
  // [stage_save]
  nn::ModuleState parameters(model);
  nn::CombinedState run({{"model", &parameters}, {"optimizer", &optimizer}});
  CH_RETURN_IF_ERROR(ch::checkpoint::SaveCheckpoint(
      world, run, dir, {.overwrite = true, .union_of_ranks = true}));
  // [/stage_save]

  // A single stage on all ranks loads what two stages have saved.
  StageModel whole(0, 4);
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(whole, all));
  CH_RETURN_IF_ERROR(whole.Materialize({.seed = 8}));
  nn::ModuleState of_whole(whole);
  nn::AdamW all_moments(whole.Parameters(), {.lr = 1e-2});
  nn::CombinedState everything(
      {{"model", &of_whole}, {"optimizer", &all_moments}});
  CH_RETURN_IF_ERROR(ch::checkpoint::LoadCheckpoint(world, everything, dir));
  // Two stages that split the layers elsewhere load their parts.
  StageModel other(first ? 0 : 3, first ? 3 : 4);
  CH_RETURN_IF_ERROR(ch::fsdp::FullyShard(other, data));
  CH_RETURN_IF_ERROR(other.Materialize({.seed = 9}));
  // [stage_load]
  nn::ModuleState mine(other, {.allow_unexpected = true});
  nn::AdamW moments(other.Parameters(), {.lr = 1e-2}, /*groups=*/{},
                    {.allow_unexpected = true});
  nn::CombinedState part({{"model", &mine}, {"optimizer", &moments}});
  CH_RETURN_IF_ERROR(ch::checkpoint::LoadCheckpoint(*stage, part, dir));
  // [/stage_load]
  const ch::NoGrad no_grad;
  for (const auto& [name, parameter] : whole.NamedParameters()) {
    const std::vector<float> values =
        ch::FullTensor(parameter->data()).ToVector<float>();
    for (const nn::Module* part : {&model, &other}) {
      for (const auto& [own, same] :
           const_cast<nn::Module*>(part)->NamedParameters()) {
        if (own != name) continue;
        CH_EXPECT_EQ(ch::FullTensor(same->data()).ToVector<float>(), values)
            << name;
      }
    }
  }
  // The optimizer state is equal too.
  size_t compared = 0;
  for (const auto& [name, parameter] : whole.NamedParameters()) {
    const auto mean = [](const std::optional<nn::AdamWState>& state) {
      return ch::FullTensor(state->exp_avg).ToVector<float>();
    };
    const std::vector<float> values = mean(all_moments.FindState(name));
    const std::optional<nn::AdamWState> own = moments.FindState(name);
    if (!own) continue;
    CH_EXPECT_EQ(mean(own), values) << name;
    ++compared;
  }
  CH_EXPECT_EQ(compared, moments.parameters().size());
  return absl::OkStatus();
}

TEST(PipelineStagesTest, StagesAreProgramsOnTheirOwnRanks) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/stages");
  ch::RunRanks(5, [&](ch::World& world) { return RunStages(world, dir); });
}

}  // namespace
