// SPDX-License-Identifier: Apache-2.0

/// \file
/// The order in which sharded modules gather, wait, reduce and free, as rank 0
/// logs it, for each way to use them.

#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/nn/embedding.h"
#include "crosshatch/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;

TEST(EventLogTest, LogsAccumulationWithoutCommunication) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) {
              job.root.SetRequiresGradientSync(false);
              return Step(job);
            }),
      ElementsAre("unshard head", "unshard blocks.0", "wait head",
                  "unshard blocks.1", "wait blocks.0", "reshard blocks.0",
                  "wait blocks.1", "reshard blocks.1", "unshard blocks.1",
                  "reshard head", "unshard blocks.0", "wait blocks.1",
                  "reshard blocks.1", "wait blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, LogsThatNothingIsGatheredTwice) {
  EXPECT_THAT(LogOf({{"fsdp", 2}}, {},
                    [](Job& job) {
                      job.root.SetReshardAfterBackward(false);
                      job.root.SetReshardAfterForward(false);
                      CH_RETURN_IF_ERROR(Step(job));
                      job.log.Take();
                      job.root.SetReshardAfterBackward(true);
                      return Step(job);
                    }),
              ElementsAre("reduce_scatter head", "reshard head",
                          "reduce_scatter blocks.1", "reshard blocks.1",
                          "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, LogsReductionWithinReplicas) {
  EXPECT_THAT(LogOf({{"replicate", 2}, {"fsdp", 2}}, {},
                    [](Job& job) {
                      job.root.SetReshardAfterForward(false);
                      job.root.SetReshardAfterBackward(false);
                      job.root.SetRequiresAllReduce(false);
                      CH_RETURN_IF_ERROR(Step(job));
                      job.log.Take();
                      CH_RETURN_IF_ERROR(Step(job));
                      job.root.SetRequiresAllReduce(true);
                      return Step(job);
                    }),
              ElementsAre("reduce_scatter head", "reduce_scatter blocks.1",
                          "reduce_scatter blocks.0", "reduce_scatter head",
                          "all_reduce head", "reduce_scatter blocks.1",
                          "all_reduce blocks.1", "reduce_scatter blocks.0",
                          "all_reduce blocks.0"));
}

TEST(EventLogTest, LogsFinalizationByHand) {
  EXPECT_THAT(LogOf({{"fsdp", 2}}, {},
                    [](Job& job) {
                      job.root.SetManualBackwardFinalization(true);
                      CH_RETURN_IF_ERROR(Step(job));
                      job.log.Take();
                      job.root.FinalizeBackward().Wait();
                      return absl::OkStatus();
                    }),
              ElementsAre("reduce_scatter blocks.1", "reduce_scatter blocks.0",
                          "reduce_scatter head"));
}

TEST(EventLogTest, LogsTheSmallerMesh) {
  FullyShardOptions options;
  options.post_forward_mesh_size = 2;
  EXPECT_THAT(
      LogOf({{"fsdp", 4}}, options, Step),
      ElementsAre(
          "unshard head", "unshard blocks.0", "wait head", "unshard blocks.1",
          "wait blocks.0", "reshard_post_forward blocks.0", "wait blocks.1",
          "reshard_post_forward blocks.1", "reshard_post_forward head",
          "unshard_within head", "unshard_within blocks.1", "wait head",
          "reduce_scatter head", "reshard head", "unshard_within blocks.0",
          "wait blocks.1", "reduce_scatter blocks.1", "reshard blocks.1",
          "wait blocks.0", "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, PrefetchesWhatItIsToldTo) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) -> absl::Status {
              nn::Module* const first = job.model.blocks()[0].get();
              nn::Module* const second = job.model.blocks()[1].get();
              CH_RETURN_IF_ERROR(job.root.SetForwardPrefetch({first, second}));
              CH_RETURN_IF_ERROR(job.root.SetBackwardPrefetch({}));
              return Step(job);
            }),
      ElementsAre("unshard head", "unshard blocks.0", "unshard blocks.1",
                  "wait head", "wait blocks.0", "reshard blocks.0",
                  "wait blocks.1", "reshard blocks.1", "reduce_scatter head",
                  "reshard head", "unshard blocks.1", "unshard blocks.0",
                  "wait blocks.1", "reduce_scatter blocks.1",
                  "reshard blocks.1", "wait blocks.0",
                  "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, PrefetchesNoMoreBytesThanAllowed) {
  FullyShardOptions options;
  options.forward_prefetch = options.backward_prefetch = 9;
  const auto forward = [&](int64_t bytes) {
    options.prefetch_bytes = bytes;
    std::vector<std::string> lines = LogOf({{"fsdp", 2}}, options, Step);
    lines.resize(4);
    return lines;
  };
  // A block takes up.weight 35 -> 48, up.bias 7 -> 16, down.weight 35 -> 48 and
  // down.bias 5 -> 16 elements of 4 bytes: 512.
  EXPECT_THAT(forward(511), ElementsAre("unshard head", "wait head",
                                        "unshard blocks.0", "wait blocks.0"));
  EXPECT_THAT(forward(512), ElementsAre("unshard head", "unshard blocks.0",
                                        "wait head", "unshard blocks.1"));
  EXPECT_THAT(forward(1024), ElementsAre("unshard head", "unshard blocks.0",
                                         "unshard blocks.1", "wait head"));
}

TEST(EventLogTest, LogsModulesThatRunTwice) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {}, Step, /*repeats=*/2),
      ElementsAre("unshard head", "unshard blocks.0", "wait head",
                  "unshard blocks.1", "wait blocks.0", "reshard blocks.0",
                  "unshard blocks.0", "wait blocks.1", "reshard blocks.1",
                  "unshard blocks.1", "wait blocks.0", "reshard blocks.0",
                  "wait blocks.1", "reshard blocks.1",
                  // Backward: gathered once, reduced after the last use.
                  "unshard blocks.1", "reduce_scatter head", "reshard head",
                  "unshard blocks.0", "wait blocks.1", "wait blocks.0",
                  "reduce_scatter blocks.1", "reshard blocks.1",
                  "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, StartsAnewAfterReset) {
  const std::vector<std::string> plain = LogOf({{"fsdp", 2}}, {}, Step);
  EXPECT_EQ(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) {
              // A forward that breaks off in the second block.
              job.root.Run({BatchOf(0, 1, 0)}, [&](TensorSpan inputs) {
                return TensorList{job.model.blocks()[0]->Forward(inputs[0])};
              });
              job.root.ResetIteration();
              job.log.Take();
              return Step(job);
            }),
      plain);
}

// Tokens through a table, then a block.
class Lookup final : public nn::Module {
 public:
  Lookup() : embedding(7, 5), block(5, 7) {
    RegisterModule("embedding", embedding);
    RegisterModule("block", block);
    for (nn::Parameter* p : Parameters()) {
      p->set_data(SmallIntegers(p->data().sizes(), 3));
    }
  }
  const char* type_name() const override { return "Lookup"; }
  nn::Embedding embedding;
  TestBlock block;

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override {
    return {block.Forward(embedding.Forward(inputs[0]))};
  }
};

TEST(EventLogTest, WhatBackwardNeedsNotIsNotPrefetched) {
  OnRanks(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        Lookup model;
        CH_RETURN_IF_ERROR(FullyShard(model.embedding, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model.block, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        CH_ASSIGN_OR_RETURN(auto table, ShardedModule::Of(model.embedding));
        table.SetUnshardInBackward(false);
        const Tensor tokens = FromValues<int32_t>({3}, {6, 1, 6});
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(tokens))));
        EXPECT_THAT(
            log.Take(),
            ElementsAre("unshard embedding", "unshard block", "wait embedding",
                        "reshard embedding", "wait block", "reshard block",
                        "unshard block", "wait block", "reduce_scatter block",
                        "reshard block", "reduce_scatter embedding"));
        return absl::OkStatus();
      });
}

TEST(EventLogTest, AHandleThatIsLateGathersNothing) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) -> absl::Status {
              const NoGrad no_grad;
              nn::Module& block = *job.model.blocks()[0];
              CH_ASSIGN_OR_RETURN(auto sharded, ShardedModule::Of(block));
              UnshardHandle handle = sharded.Unshard();
              block.Forward(BatchOf(0, 1, 0));
              handle.Wait();
              return absl::OkStatus();
            }),
      ElementsAre("unshard blocks.0", "wait blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, AListIsFreedWithoutItsLastModule) {
  OnRanks(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        TestModel model(2, 5, 7, 3);
        model.FillWithIntegers();
        nn::Module* const first = model.blocks()[0].get();
        nn::Module* const second = model.blocks()[1].get();
        CH_RETURN_IF_ERROR(FullyShard({first, second}, mesh));
        {
          const NoGrad no_grad;
          first->Forward(BatchOf(0, 1, 0));
        }
        EXPECT_THAT(log.Take(), ElementsAre("unshard blocks", "wait blocks",
                                            "reshard blocks"));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
        std::vector<std::string> plain;
        for (const bool after_a_part : {false, false, true}) {
          if (after_a_part) {
            const NoGrad no_grad;
            root.Run({BatchOf(0, 1, 1)}, [&](TensorSpan inputs) {
              return TensorList{first->Forward(inputs[0])};
            });
          }
          log.Take();
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 0)))));
          if (after_a_part) {
            EXPECT_EQ(log.Take(), plain);
          } else {
            plain = log.Take();
          }
        }
        return absl::OkStatus();
      });
}

}  // namespace
}  // namespace crosshatch::fsdp
