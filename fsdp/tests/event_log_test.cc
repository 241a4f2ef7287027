// SPDX-License-Identifier: Apache-2.0

/// \file
/// The order in which sharded modules gather, wait, reduce and free on rank 0,
/// for each way to use them.

#include <functional>
#include <string>
#include <vector>

#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/odd_models_testutil.h"
#include "crosshatch/fsdp/on_ranks_testutil.h"
#include "crosshatch/fsdp/replicate.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "crosshatch/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using ::testing::ElementsAre;

using Lines = std::vector<std::string>;

// Appends the lines of a backward to those of a forward.
Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Lines& PlainForward() {
  static const Lines lines = {
      "unshard head",  "unshard blocks.0", "wait head",     "unshard blocks.1",
      "wait blocks.0", "reshard blocks.0", "wait blocks.1", "reshard blocks.1"};
  return lines;
}

const Lines& PlainBackward() {
  static const Lines lines = {
      "unshard blocks.1", "reduce_scatter head", "reshard head",
      "unshard blocks.0", "wait blocks.1",       "reduce_scatter blocks.1",
      "reshard blocks.1", "wait blocks.0",       "reduce_scatter blocks.0",
      "reshard blocks.0"};
  return lines;
}

// Returns rank 0's log of `body` from its beginning.
Lines LogOnMesh(const Axes& axes,
                const std::function<absl::Status(const DeviceMesh& mesh,
                                                 LineSink& log)>& body) {
  Lines lines;
  OnRanks(axes, [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
    CH_RETURN_IF_ERROR(body(mesh, log));
    if (mesh.world().rank() == 0) lines = log.Take();
    return absl::OkStatus();
  });
  return OfFirstRank(lines);
}

TEST(EventLogTest, LogsAStep) {
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {}, Step), PlainForward() + PlainBackward());
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {.ragged_shard = RaggedShard()}, Step),
            PlainForward() + PlainBackward());
}

TEST(EventLogTest, LogsPrefetchingAtAnyDepth) {
  const auto log_of = [](int depth) {
    FullyShardOptions options;
    options.prefetch.forward = options.prefetch.backward = depth;
    return LogOf({{"fsdp", 2}}, options, Step);
  };
  EXPECT_THAT(
      log_of(0),
      ElementsAre("unshard head", "wait head", "unshard blocks.0",
                  "wait blocks.0", "reshard blocks.0", "unshard blocks.1",
                  "wait blocks.1", "reshard blocks.1", "reduce_scatter head",
                  "reshard head", "unshard blocks.1", "wait blocks.1",
                  "reduce_scatter blocks.1", "reshard blocks.1",
                  "unshard blocks.0", "wait blocks.0",
                  "reduce_scatter blocks.0", "reshard blocks.0"));
  EXPECT_EQ(log_of(1), PlainForward() + PlainBackward());
  EXPECT_THAT(
      log_of(2),
      ElementsAre("unshard head", "unshard blocks.0", "unshard blocks.1",
                  "wait head", "wait blocks.0", "reshard blocks.0",
                  "wait blocks.1", "reshard blocks.1", "unshard blocks.1",
                  "unshard blocks.0", "reduce_scatter head", "reshard head",
                  "wait blocks.1", "reduce_scatter blocks.1",
                  "reshard blocks.1", "wait blocks.0",
                  "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, LogsInference) {
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {},
                  [](Job& job) {
                    const NoGrad no_grad;
                    job.Loss(0);
                    return absl::OkStatus();
                  }),
            PlainForward() + Lines{"reshard head"});
}

TEST(EventLogTest, LogsReplicas) {
  EXPECT_EQ(
      LogOf({{"replicate", 2}, {"fsdp", 2}}, {}, Step),
      PlainForward() +
          Lines({"unshard blocks.1", "reduce_scatter head", "all_reduce head",
                 "reshard head", "unshard blocks.0", "wait blocks.1",
                 "reduce_scatter blocks.1", "all_reduce blocks.1",
                 "reshard blocks.1", "wait blocks.0", "reduce_scatter blocks.0",
                 "all_reduce blocks.0", "reshard blocks.0"}));
}

TEST(EventLogTest, LogsReplication) {
  EXPECT_THAT(LogOnMesh({{"dp", 2}},
                        [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                          TestModel model(2, 5, 7, 3);
                          model.FillWithIntegers();
                          CH_RETURN_IF_ERROR(Replicate(model, mesh));
                          return Backward(Sum(model.Forward(BatchOf(0, 1, 0))));
                        }),
              ElementsAre("unshard root", "wait root", "reduce_scatter root",
                          "all_reduce root", "reshard root"));
}

TEST(EventLogTest, LogsCopiesFromAndToHostMemory) {
  FullyShardOptions options;
  options.cpu_offload = true;
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, options, Step),
      ElementsAre(
          "copy_to_device head", "unshard head", "copy_to_device blocks.0",
          "unshard blocks.0", "wait head", "copy_to_device blocks.1",
          "unshard blocks.1", "wait blocks.0", "reshard blocks.0",
          "wait blocks.1", "reshard blocks.1",
          // Backward.
          "copy_to_device blocks.1", "unshard blocks.1", "reduce_scatter head",
          "copy_to_host head", "reshard head", "copy_to_device blocks.0",
          "unshard blocks.0", "wait blocks.1", "reduce_scatter blocks.1",
          "copy_to_host blocks.1", "reshard blocks.1", "wait blocks.0",
          "reduce_scatter blocks.0", "copy_to_host blocks.0",
          "reshard blocks.0"));
}

TEST(EventLogTest, KeepingMemoryChangesNoStep) {
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {},
                  [](Job& job) {
                    CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                      s.keep_unsharded = true;
                    }));
                    return Step(job);
                  }),
            PlainForward() + PlainBackward());
}

TEST(EventLogTest, LogsGatheringByHand) {
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {},
                  [](Job& job) -> absl::Status {
                    CH_ASSIGN_OR_RETURN(
                        auto last, ShardedModule::Of(*job.model.blocks()[1]));
                    job.root.Unshard().Wait();
                    job.root.Reshard();
                    last.Unshard();
                    job.root.Unshard().Wait();
                    return Step(job);
                  }),
            Lines({"unshard head", "wait head", "reshard head",
                   "unshard blocks.1", "unshard head", "wait head",
                   // Forward uses the gathered parameters.
                   "unshard blocks.0", "wait blocks.0", "reshard blocks.0",
                   "wait blocks.1", "reshard blocks.1"}) +
                PlainBackward());
}

TEST(EventLogTest, LogsBackwardsThatAreNotTheLast) {
  EXPECT_EQ(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) -> absl::Status {
              CH_RETURN_IF_ERROR(Configure(
                  job.model, [&](Settings& s) { s.is_last_backward = false; }));
              CH_RETURN_IF_ERROR(Step(job));
              CH_RETURN_IF_ERROR(Configure(
                  job.model, [&](Settings& s) { s.is_last_backward = true; }));
              return Step(job);
            }),
      PlainForward() + PlainBackward() + PlainForward() + PlainBackward());
}

// Returns the log of two forwards followed by their backwards.
Lines LogOfTwo(bool first_is_last) {
  return LogOf({{"fsdp", 2}}, {}, [&](Job& job) -> absl::Status {
    const Tensor first = job.Loss(0);
    const Tensor second = job.Loss(1);
    job.log.Take();
    CH_RETURN_IF_ERROR(Configure(
        job.model, [&](Settings& s) { s.is_last_backward = first_is_last; }));
    CH_RETURN_IF_ERROR(Backward(second));
    CH_RETURN_IF_ERROR(
        Configure(job.model, [&](Settings& s) { s.is_last_backward = true; }));
    return Backward(first);
  });
}

TEST(EventLogTest, GathersAheadForTheBackwardOfAnEarlierForward) {
  EXPECT_EQ(
      LogOfTwo(false),
      Lines({"unshard blocks.1", "reduce_scatter head", "reshard head",
             "unshard blocks.0", "wait blocks.1", "reduce_scatter blocks.1",
             "reshard blocks.1", "unshard head", "wait blocks.0",
             "reduce_scatter blocks.0", "reshard blocks.0",
             // The second backward uses the prefetched head.
             "unshard blocks.1", "wait head", "reduce_scatter head",
             "reshard head", "unshard blocks.0", "wait blocks.1",
             "reduce_scatter blocks.1", "reshard blocks.1", "wait blocks.0",
             "reduce_scatter blocks.0", "reshard blocks.0"}));
  // If the first backward is the last, nothing was prefetched for the second.
  EXPECT_EQ(LogOfTwo(true),
            PlainBackward() +
                Lines({"unshard head", "wait head", "reduce_scatter head",
                       "reshard head", "unshard blocks.1", "wait blocks.1",
                       "reduce_scatter blocks.1", "reshard blocks.1",
                       "unshard blocks.0", "wait blocks.0",
                       "reduce_scatter blocks.0", "reshard blocks.0"}));
}

TEST(EventLogTest, LogsTwoRoots) {
  const Lines lines = LogOnMesh(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
        TestModel a(1, 5, 7, 5), b(1, 5, 7, 3);
        for (TestModel* model : {&a, &b}) {
          for (nn::Parameter* p : model->Parameters()) {
            p->set_name((model == &a ? "a." : "b.") + p->name());
          }
          model->FillWithIntegers();
          CH_RETURN_IF_ERROR(ShardAll(*model, mesh, {}));
        }
        return Backward(Sum(b.Forward(a.Forward(BatchOf(0, 1, 0)))));
      });
  EXPECT_THAT(lines,
              ElementsAre("unshard a.head", "unshard a.blocks.0", "wait a.head",
                          "wait a.blocks.0", "reshard a.blocks.0",
                          "unshard b.head", "unshard b.blocks.0", "wait b.head",
                          "wait b.blocks.0", "reshard b.blocks.0",
                          // Backward.
                          "unshard b.blocks.0", "reduce_scatter b.head",
                          "reshard b.head", "wait b.blocks.0",
                          "reduce_scatter b.blocks.0", "reshard b.blocks.0",
                          "unshard a.blocks.0", "reduce_scatter a.head",
                          "reshard a.head", "wait a.blocks.0",
                          "reduce_scatter a.blocks.0", "reshard a.blocks.0"));
}

TEST(EventLogTest, LogsTiedParameters) {
  EXPECT_THAT(
      LogOnMesh({{"fsdp", 2}},
                [](const DeviceMesh& mesh, LineSink&) -> absl::Status {
                  Tied model;
                  CH_RETURN_IF_ERROR(FullyShard(model.first, mesh));
                  CH_RETURN_IF_ERROR(FullyShard(model.middle, mesh));
                  CH_RETURN_IF_ERROR(FullyShard(model.last, mesh));
                  CH_RETURN_IF_ERROR(FullyShard(model, mesh));
                  return Backward(Sum(model.Forward(BatchOf(0, 1, 0))));
                }),
      // The weight that first and last share is in the root's group, which is
      // reduced after both.
      ElementsAre("unshard first", "wait first", "unshard middle",
                  "wait middle", "reshard middle", "unshard middle",
                  "wait middle", "reduce_scatter middle", "reshard middle",
                  "reduce_scatter first", "reshard first"));
}

TEST(EventLogTest, LogsFrozenGroups) {
  EXPECT_THAT(
      LogOnMesh({{"fsdp", 2}},
                [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
                  Adapters model;
                  CH_RETURN_IF_ERROR(FullyShard(model.a, mesh));
                  CH_RETURN_IF_ERROR(FullyShard(model.b, mesh));
                  CH_RETURN_IF_ERROR(FullyShard(model, mesh));
                  const Tensor loss = Sum(model.Forward(BatchOf(0, 1, 0)));
                  log.Take();
                  return Backward(loss);
                }),
      // A frozen group is freed when its module's inputs have their gradients.
      // Those of b's inputs are complete only after a has been gathered.
      ElementsAre("unshard b (f32)", "unshard b (f32, frozen)",
                  "unshard a (f32)", "unshard a (f32, frozen)", "wait b (f32)",
                  "wait b (f32, frozen)", "reduce_scatter b (f32)",
                  "reshard b (f32)", "wait a (f32)", "wait a (f32, frozen)",
                  "reshard b (f32, frozen)", "reduce_scatter a (f32)",
                  "reshard a (f32)", "reshard a (f32, frozen)"));
}

// Returns the log of a step of Conditional that does not call its second
// branch.
Lines LogOfSkipping(bool reduces_unused, bool one_group) {
  return LogOnMesh(
      {{"fsdp", 2}},
      [&](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        Conditional model([] { return BranchUse::kSkipped; });
        if (!one_group) {
          CH_RETURN_IF_ERROR(FullyShard(model.a, mesh));
          CH_RETURN_IF_ERROR(FullyShard(model.b, mesh));
        }
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
          s.reduce_unused_params = reduces_unused;
        }));
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 0)))));
        log.Take();
        return Backward(Sum(model.Forward(BatchOf(0, 1, 0))));
      });
}

TEST(EventLogTest, LogsUnusedParameters) {
  EXPECT_THAT(LogOfSkipping(false, false),
              ElementsAre("unshard a", "wait a", "reshard a", "unshard a",
                          "wait a", "reduce_scatter a", "reshard a"));
  // In the group of a used parameter: reduced with zeros at the end of
  // backward.
  EXPECT_THAT(LogOfSkipping(false, true),
              ElementsAre("unshard root", "wait root", "reduce_scatter root",
                          "reshard root"));
}

TEST(EventLogTest, LogsUnusedParametersThatAreReduced) {
  EXPECT_THAT(LogOfSkipping(true, false),
              ElementsAre("unshard a", "unshard b", "wait a",
                          // The end of backward.
                          "reduce_scatter a", "reshard a", "reduce_scatter b",
                          "wait b", "reshard b"));
}

TEST(EventLogTest, LogsAccumulationWithoutCommunication) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) {
              CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                s.requires_gradient_sync = false;
              }));
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
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.reshard_after_backward = false;
                      }));
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.reshard_after_forward = false;
                      }));
                      CH_RETURN_IF_ERROR(Step(job));
                      job.log.Take();
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.reshard_after_backward = true;
                      }));
                      return Step(job);
                    }),
              ElementsAre("reduce_scatter head", "reshard head",
                          "reduce_scatter blocks.1", "reshard blocks.1",
                          "reduce_scatter blocks.0", "reshard blocks.0"));
}

TEST(EventLogTest, LogsReductionWithinReplicas) {
  EXPECT_THAT(LogOf({{"replicate", 2}, {"fsdp", 2}}, {},
                    [](Job& job) {
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.reshard_after_forward = false;
                      }));
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.reshard_after_backward = false;
                      }));
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.requires_all_reduce = false;
                      }));
                      CH_RETURN_IF_ERROR(Step(job));
                      job.log.Take();
                      CH_RETURN_IF_ERROR(Step(job));
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.requires_all_reduce = true;
                      }));
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
                      CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
                        s.manual_finalization = true;
                      }));
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

TEST(EventLogTest, PrefetchesTheModulesOfTheSettings) {
  EXPECT_THAT(
      LogOf({{"fsdp", 2}}, {},
            [](Job& job) -> absl::Status {
              nn::Module* const first = job.model.blocks()[0].get();
              nn::Module* const second = job.model.blocks()[1].get();
              const auto set = [&](Settings& s) {
                s.forward_prefetch_modules = {first, second};
                s.backward_prefetch_modules.emplace();
              };
              CH_RETURN_IF_ERROR(Configure(job.model, set, false));
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
  options.prefetch.forward = options.prefetch.backward = 9;
  const auto forward = [&](int64_t bytes) {
    options.prefetch.bytes = bytes;
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
              // A forward that is abandoned in the second block.
              job.root.Run({BatchOf(0, 1, 0)}, [&](TensorSpan inputs) {
                return TensorList{job.model.blocks()[0]->Forward(inputs[0])};
              });
              job.root.ResetIteration();
              job.log.Take();
              return Step(job);
            }),
      plain);
}

TEST(EventLogTest, DoesNotPrefetchUnneededParametersInBackward) {
  OnRanks(
      {{"fsdp", 2}}, [](const DeviceMesh& mesh, LineSink& log) -> absl::Status {
        Lookup model;
        CH_RETURN_IF_ERROR(FullyShard(model.embedding, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model.block, mesh));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        CH_RETURN_IF_ERROR(Configure(model.embedding, [&](Settings& s) {
          s.unshard_in_backward = false;
        }));
        const Tensor tokens = FromValues<int32_t>({3}, {6, 1, 6});
        CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(tokens))));
        CH_EXPECT_THAT(
            log.Take(),
            ElementsAre("unshard embedding", "unshard block", "wait embedding",
                        "reshard embedding", "wait block", "reshard block",
                        "unshard block", "wait block", "reduce_scatter block",
                        "reshard block", "reduce_scatter embedding"));
        return absl::OkStatus();
      });
}

TEST(EventLogTest, ALateHandleIssuesNoAllGather) {
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
        CH_EXPECT_THAT(log.Take(), ElementsAre("unshard blocks", "wait blocks",
                                               "reshard blocks"));
        CH_RETURN_IF_ERROR(FullyShard(model, mesh));
        CH_ASSIGN_OR_RETURN(auto root, ShardedModule::Of(model));
        const auto run_part = [&] {
          return Sum(root.Run({BatchOf(0, 1, 1)}, [&](TensorSpan inputs) {
            return TensorList{first->Forward(inputs[0])};
          })[0]);
        };
        // Before the third step and the fifth, a part runs alone.
        Lines plain;
        for (int step = 1; step <= 6; ++step) {
          if (step == 3) {
            const NoGrad no_grad;
            run_part();
          } else if (step == 5) {
            CH_RETURN_IF_ERROR(Backward(run_part()));
          }
          log.Take();
          CH_RETURN_IF_ERROR(Backward(Sum(model.Forward(BatchOf(0, 1, 0)))));
          const Lines lines = log.Take();
          if (step > 2) CH_EXPECT_EQ(lines, plain) << step;
          plain = lines;
        }
        return absl::OkStatus();
      });
}

TEST(EventLogTest, ANestedForwardDoesNotUnshardOrReshard) {
  EXPECT_EQ(LogOf({{"fsdp", 2}}, {},
                  [](Job& job) {
                    const TensorList outputs = job.root.Run(
                        {BatchOf(0, 1, 0)}, [&](TensorSpan inputs) {
                          return TensorList{job.model.Forward(inputs[0])};
                        });
                    return Backward(Sum(outputs[0]));
                  }),
            PlainForward() + PlainBackward());
}

}  // namespace
}  // namespace crosshatch::fsdp
