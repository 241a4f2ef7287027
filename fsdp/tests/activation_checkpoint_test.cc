// SPDX-License-Identifier: Apache-2.0

// Modules that are sharded and use activation checkpointing, in all nestings.

#include "crosshatch/nn/activation_checkpoint.h"

#include <algorithm>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;

constexpr int kBlocks = 3;

enum class Checkpointed {
  kNothing,
  kBlocks,        // The sharded modules.
  kBlocksFirst,   // The same, before FullyShard.
  kWithinBlocks,  // A part of a sharded module.
  kAround,        // An unsharded module that contains sharded ones.
  kRoot,          // The sharded root and the sharded blocks.
};

// Contains a TestModel but is not sharded itself.
class Outer final : public nn::Module {
 public:
  Outer() : model_(kBlocks, 5, 7, 3) {
    RegisterModule("model", model_);
    NamedParameters();
  }
  const char* type_name() const override { return "Outer"; }
  TestModel& model() { return model_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {Tanh(model_.Forward(Tanh(inputs[0])))};
  }

 private:
  TestModel model_;
};

struct Result {
  std::vector<std::vector<float>> gradients;
  std::vector<std::string> log;
  int runs_of_a_block = 0;
};

absl::Status Step(World& world, Checkpointed what, LineSink& sink,
                  Result& result) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, {{"fsdp", world.size()}}));
  Outer outer;
  TestModel& model = outer.model();
  CH_RETURN_IF_ERROR(outer.Materialize({.seed = 3}));
  const auto checkpoint_blocks = [&]() -> absl::Status {
    for (auto& block : model.blocks()) {
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(*block));
    }
    return absl::OkStatus();
  };
  if (what == Checkpointed::kBlocksFirst) {
    CH_RETURN_IF_ERROR(checkpoint_blocks());
  }
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, mesh));
  }
  CH_RETURN_IF_ERROR(FullyShard(model, mesh));
  switch (what) {
    case Checkpointed::kNothing:
    case Checkpointed::kBlocksFirst:
      break;
    case Checkpointed::kBlocks:
      CH_RETURN_IF_ERROR(checkpoint_blocks());
      break;
    case Checkpointed::kWithinBlocks:
      for (auto& block : model.blocks()) {
        CH_RETURN_IF_ERROR(
            nn::CheckpointActivations(*block->children()[0].second));
      }
      break;
    case Checkpointed::kRoot:
      CH_RETURN_IF_ERROR(checkpoint_blocks());
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(model));
      break;
    case Checkpointed::kAround:
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(outer));
      break;
  }
  Result mine;
  // The hook of a block's child runs as often as the block's forward.
  model.blocks()[1]->children()[1].second->AddPreHook(
      [&](nn::Module&, TensorList&) { ++mine.runs_of_a_block; });
  Tensor x = SmallIntegers({4, 5}, world.rank());
  for (int step = 0; step < 2; ++step) {
    // The second step starts from the same state as the first.
    for (nn::Parameter* p : outer.Parameters()) p->set_grad(Tensor());
    mine.runs_of_a_block = 0;
    if (world.rank() == 0) sink.Take();
    CH_RETURN_IF_ERROR(Backward(Sum(Square(outer.Forward(x)))));
  }
  for (nn::Parameter* p : outer.Parameters()) {
    mine.gradients.push_back(LocalTensor(p->grad()).ToVector<float>());
  }
  if (world.rank() == 0) {
    mine.log = sink.Take();
    result = mine;
  }
  return world.context().Synchronize();
}

Result RunStep(Checkpointed what) {
  Result result;
  LineSink sink(EventKind::kFsdp);
  RunRanks(3, [&](World& world) { return Step(world, what, sink, result); },
           {.sinks = {&sink, nullptr, nullptr}});
  return result;
}

int Count(const Result& result, const std::string& line) {
  return static_cast<int>(
      std::count(result.log.begin(), result.log.end(), line));
}

TEST(ActivationCheckpointTest, InsideAShardedModuleAddsNoAllGather) {
  const Result plain = RunStep(Checkpointed::kNothing);
  EXPECT_EQ(plain.runs_of_a_block, 1);
  for (const Checkpointed what :
       {Checkpointed::kBlocks, Checkpointed::kBlocksFirst,
        Checkpointed::kWithinBlocks}) {
    const Result result = RunStep(what);
    EXPECT_EQ(result.gradients, plain.gradients);
    // Backward gathers the block before it needs the block's activations.
    EXPECT_EQ(result.log, plain.log);
    EXPECT_EQ(result.runs_of_a_block,
              what == Checkpointed::kWithinBlocks ? 1 : 2);
  }
}

TEST(ActivationCheckpointTest, AroundAShardedModuleAllGathersOnceForBackward) {
  const Result plain = RunStep(Checkpointed::kNothing);
  for (const Checkpointed what : {Checkpointed::kAround, Checkpointed::kRoot}) {
    const Result result = RunStep(what);
    EXPECT_EQ(result.gradients, plain.gradients);
    for (int i = 0; i < kBlocks; ++i) {
      const std::string block = absl::StrCat("model.blocks.", i);
      EXPECT_EQ(Count(result, "unshard " + block), 2) << block;
      EXPECT_EQ(Count(result, "reshard " + block), 2) << block;
      EXPECT_EQ(Count(result, "reduce_scatter " + block), 1) << block;
    }
    EXPECT_EQ(Count(result, "unshard model.head"), 1);
    EXPECT_EQ(result.runs_of_a_block, what == Checkpointed::kRoot ? 3 : 2);
  }
}

TEST(ActivationCheckpointTest, LogsTheSecondRunInBackward) {
  EXPECT_THAT(
      RunStep(Checkpointed::kAround).log,
      ElementsAre("unshard model.head", "unshard model.blocks.0",
                  "wait model.head", "unshard model.blocks.1",
                  "wait model.blocks.0", "reshard model.blocks.0",
                  "unshard model.blocks.2", "wait model.blocks.1",
                  "reshard model.blocks.1", "wait model.blocks.2",
                  "reshard model.blocks.2",
                  // The recomputation gathers in forward order without
                  // prefetching, and keeps the gathered parameters.
                  "unshard model.blocks.0", "wait model.blocks.0",
                  "unshard model.blocks.1", "wait model.blocks.1",
                  "unshard model.blocks.2", "wait model.blocks.2",
                  "reduce_scatter model.head", "reshard model.head",
                  "reduce_scatter model.blocks.2", "reshard model.blocks.2",
                  "reduce_scatter model.blocks.1", "reshard model.blocks.1",
                  "reduce_scatter model.blocks.0", "reshard model.blocks.0"));
}

}  // namespace
}  // namespace crosshatch::fsdp
