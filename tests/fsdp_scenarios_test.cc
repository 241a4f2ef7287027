// SPDX-License-Identifier: Apache-2.0

/// \file
/// What a program may ask of FSDP, on every kind of mesh, beside one rank: the
/// arithmetic is of small integers, so the weights are equal bit for bit.
/// CROSSHATCH_FUZZ_STREAM_SEEDS: with how many seeds of adversarial streams.

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/redistribution/fuzz_testutil.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/fsdp/training_testutil.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

using Axes = std::vector<MeshAxis>;

const std::vector<Axes>& Meshes() {
  static const auto* const meshes =
      new std::vector<Axes>{{{"fsdp", 2}},
                            {{"fsdp", 3}},
                            {{"fsdp", 4}},
                            {{"replicate", 2}, {"fsdp", 2}},
                            {{"fsdp", 2}, {"tp", 2}},
                            {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}};
  return *meshes;
}

constexpr int kSteps = 2;
constexpr int kMicro = 3;  // Backwards to a step.

uint64_t StreamSeeds(unsigned otherwise) {
  return FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", otherwise);
}

// A model on one rank of a mesh, or on no mesh at all.
struct Job {
  TestModel& model;
  int part;  // Of the batch.
  int parts;
  ShardedModule* root;  // Null where nothing is sharded.

  Tensor Loss(int64_t salt) const {
    return Sum(model.Forward(BatchOf(part, parts, salt)));
  }
  Tensor LossOfMicro(int step, int micro) const {
    return Loss(step * kMicro + micro);
  }
};

// A step: kMicro backwards, their gradients added up.
using Step = std::function<absl::Status(Job& job, int step)>;

absl::Status PlainStep(Job& job, int step) {
  for (int i = 0; i < kMicro; ++i) {
    CH_RETURN_IF_ERROR(Backward(job.LossOfMicro(step, i)));
  }
  return absl::OkStatus();
}

// Calls `set(settings, on)` with on = false before all backwards but the last.
Step Except(void (*set)(Settings&, bool)) {
  return [set](Job& job, int step) -> absl::Status {
    for (int i = 0; i < kMicro; ++i) {
      CH_RETURN_IF_ERROR(
          Configure(job.model, [&](Settings& s) { set(s, i + 1 == kMicro); }));
      CH_RETURN_IF_ERROR(Backward(job.LossOfMicro(step, i)));
    }
    return absl::OkStatus();
  };
}

struct Scenario {
  std::string name;
  Step step;
  FullyShardOptions options = {};
  int repeats = 1;
  // Also on one rank: what the program itself does to the model.
  std::function<void(TestModel&, int step)> before_step = {};
};

Weights Dense(const Scenario& scenario) {
  TestModel model(2, 5, 7, 3, scenario.repeats);
  model.FillWithIntegers();
  Job job{model, 0, 1, nullptr};
  for (int step = 0; step < kSteps; ++step) {
    if (scenario.before_step) scenario.before_step(model, step);
    CH_CHECK_OK(PlainStep(job, step));
    IntegerDescent(model);
  }
  return FullWeights(model);
}

absl::Status Shard(TestModel& model, const DeviceMesh& mesh,
                   FullyShardOptions options, Job& job) {
  std::vector<std::string> data_axes;
  for (const std::string& axis : mesh.axis_names()) {
    if (axis != "tp") data_axes.push_back(axis);
  }
  CH_ASSIGN_OR_RETURN(DeviceMesh data, mesh.Slice(data_axes));
  if (data_axes.back() == "cp") {  // FSDP sees dp and cp as one axis.
    CH_ASSIGN_OR_RETURN(data, data.Flatten(data_axes, "joined"));
  }
  if (mesh.axis_names().back() == "tp") {
    CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
    CH_RETURN_IF_ERROR(tp::ParallelizeModule(
        model, tp,
        {{"blocks.*.up", tp::ColwiseParallel()},
         {"blocks.*.down", tp::RowwiseParallel({.use_local_output = true})}}));
  }
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, data, options));
  }
  job.part = 0;
  for (int i = 0; i < data.ndim(); ++i) {
    job.part = job.part * data.size(i) + *data.index(i);
  }
  job.parts = data.size();
  return FullyShard(model, data, options);
}

// Shards a model on `axes`, calls `body`, and expects all ranks to see
// `weights`.
void ExpectWeights(const Weights& weights, const std::string& what,
                   const Axes& axes, const FullyShardOptions& options,
                   int repeats, const std::function<absl::Status(Job&)>& body,
                   uint64_t adversarial_seed = 0) {
  OnMesh(axes,
         [&](const DeviceMesh& mesh) -> absl::Status {
           TestModel model(2, 5, 7, 3, repeats);
           model.FillWithIntegers();
           Job job{model, 0, 1, nullptr};
           CH_RETURN_IF_ERROR(Shard(model, mesh, options, job));
           CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
           job.root = &root;
           CH_RETURN_IF_ERROR(body(job));
           CH_EXPECT_EQ(FullWeights(model), weights)
               << what << " on " << MeshLayout::Create(axes)->ToString();
           return mesh.world().context().Synchronize();
         },
         {.test = {.adversarial_seed = adversarial_seed}});
}

void TrainsAsOneRank(const Scenario& scenario, const std::vector<Axes>& meshes,
                     uint64_t adversarial_seed = 0) {
  const Weights dense = Dense(scenario);
  for (const Axes& axes : meshes) {
    FullyShardOptions options = scenario.options;
    if (!options.reduction.divide_factor) options.reduction.divide_factor = 1;
    const auto train = [&](Job& job) -> absl::Status {
      for (int step = 0; step < kSteps; ++step) {
        if (scenario.before_step) scenario.before_step(job.model, step);
        CH_RETURN_IF_ERROR(scenario.step(job, step));
        IntegerDescent(job.model);
      }
      return absl::OkStatus();
    };
    ExpectWeights(dense, scenario.name, axes, options, scenario.repeats, train,
                  adversarial_seed);
  }
}

std::vector<Scenario> Accumulations() {
  return {
      {"with communication", PlainStep},
      {"without communication",
       Except([](Settings& s, bool last) { s.requires_gradient_sync = last; })},
      {"gathered between microbatches",
       Except([](Settings& s, bool last) { s.reshard_after_backward = last; })},
      {"gathered, without communication", Except([](Settings& s, bool last) {
         s.reshard_after_backward = last;
         s.requires_gradient_sync = last;
       })},
      {"within replicas",
       Except([](Settings& s, bool last) { s.requires_all_reduce = last; })},
      {"waiting once",
       Except([](Settings& s, bool last) { s.is_last_backward = last; })},
      {"first nothing, then within replicas, then all",
       [](Job& job, int step) -> absl::Status {
         for (int i = 0; i < kMicro; ++i) {
           CH_RETURN_IF_ERROR(Configure(job.model, [&](Settings& s) {
             s.requires_gradient_sync = i > 0;
             s.requires_all_reduce = i > 1;
           }));
           CH_RETURN_IF_ERROR(Backward(job.LossOfMicro(step, i)));
         }
         return absl::OkStatus();
       }},
      {"finalized by hand",
       [](Job& job, int step) -> absl::Status {
         CH_RETURN_IF_ERROR(Configure(
             job.model, [&](Settings& s) { s.manual_finalization = true; }));
         CH_RETURN_IF_ERROR(PlainStep(job, step));
         job.root->FinalizeBackward().Wait();
         return absl::OkStatus();
       }},
      {"two forwards before their backwards",
       [](Job& job, int step) -> absl::Status {
         const Tensor first = job.LossOfMicro(step, 0);
         const Tensor second = job.LossOfMicro(step, 1);
         CH_RETURN_IF_ERROR(Backward(second));
         CH_RETURN_IF_ERROR(Backward(first));
         return Backward(job.LossOfMicro(step, 2));
       }},
      {"two forwards before their backwards, waiting once",
       [](Job& job, int step) -> absl::Status {
         CH_RETURN_IF_ERROR(Configure(
             job.model, [&](Settings& s) { s.is_last_backward = false; }));
         const Tensor first = job.LossOfMicro(step, 0);
         const Tensor second = job.LossOfMicro(step, 1);
         CH_RETURN_IF_ERROR(Backward(second));
         CH_RETURN_IF_ERROR(Backward(first));
         CH_RETURN_IF_ERROR(Configure(
             job.model, [&](Settings& s) { s.is_last_backward = true; }));
         return Backward(job.LossOfMicro(step, 2));
       }},
  };
}

TEST(FsdpScenariosTest, AccumulatesGradientsInEveryWay) {
  for (const Scenario& scenario : Accumulations()) {
    TrainsAsOneRank(scenario, Meshes());
  }
}

TEST(FsdpScenariosTest, AccumulatesOnAdversarialStreams) {
  for (const Scenario& scenario : Accumulations()) {
    for (uint64_t seed = 1; seed <= StreamSeeds(3); ++seed) {
      TrainsAsOneRank(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, seed);
    }
  }
}

std::vector<Scenario> SettingScenarios() {
  std::vector<Scenario> scenarios;
  const auto add = [&](std::string name,
                       std::function<absl::Status(Job&)> set) -> Scenario& {
    scenarios.push_back(
        {std::move(name), [set](Job& job, int step) -> absl::Status {
           CH_RETURN_IF_ERROR(set(job));
           return PlainStep(job, step);
         }});
    return scenarios.back();
  };
  add("gathered by hand", [](Job& job) {
    job.root->Unshard().Wait();
    ShardedModule::Of(*job.model.blocks()[1])->Unshard();
    return absl::OkStatus();
  });
  add("freed by hand", [](Job& job) {
    job.root->Unshard();
    job.root->Reshard();
    return absl::OkStatus();
  });
  add("memory kept", [](Job& job) {
    return Configure(job.model, [](Settings& s) { s.keep_unsharded = true; });
  });
  add("freed after forward, also the root", [](Job& job) {
    return Configure(job.model,
                     [](Settings& s) { s.reshard_after_forward = true; });
  });
  add("prefetched in lists", [](Job& job) -> absl::Status {
    auto& blocks = job.model.blocks();
    const auto on_root = [&](Settings& s) {
      s.forward_prefetch_modules = {blocks[0].get(), blocks[1].get()};
      s.backward_prefetch_modules = {blocks[1].get()};
    };
    CH_RETURN_IF_ERROR(Configure(job.model, on_root, /*recurse=*/false));
    return Configure(*blocks[1], [&](Settings& s) {
      s.forward_prefetch_modules.emplace();
      s.backward_prefetch_modules = {blocks[0].get()};
    });
  });
  add("only sums", [](Job& job) {
    return Configure(job.model,
                     [](Settings& s) { s.reduction.force_sum = true; });
  });
  add("divided as set later", [](Job& job) {
    return Configure(job.model,
                     [](Settings& s) { s.reduction.divide_factor = 1; });
  }).options.reduction.divide_factor = 7;
  add("after the optimizer's event", [](Job& job) {
    RankContext& context = RankContext::Current();
    job.root->SetPostOptimizerEvent(context.compute_stream().Record());
    return absl::OkStatus();
  });
  add("unused ones reduced", [](Job& job) {
    return Configure(job.model,
                     [](Settings& s) { s.reduce_unused_params = true; });
  });
  const auto nothing = [](Job&) { return absl::OkStatus(); };
  add("few bytes ahead", nothing).options.prefetch.bytes = 1;
  add("three buffers", nothing).options.reduction.buffers = 3;
  add("modules run three times", nothing).repeats = 3;
  add("frozen at times", nothing).before_step = [](TestModel& model, int step) {
    for (nn::Parameter* p : model.blocks()[0]->Parameters()) {
      p->set_requires_grad(step % 2 == 1);
    }
  };
  return scenarios;
}

TEST(FsdpScenariosTest, ObeysEverySetting) {
  for (const Scenario& scenario : SettingScenarios()) {
    TrainsAsOneRank(scenario, Meshes());
  }
}

TEST(FsdpScenariosTest, ObeysEverySettingOnAdversarialStreams) {
  for (const Scenario& scenario : SettingScenarios()) {
    TrainsAsOneRank(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, 11);
  }
}

// An update that the host does not wait for.
void Negate(nn::Module& model) {
  const NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    MulInPlace(LocalTensor(p->data()), -1);
  }
}

absl::Status TrainParts(Job& job) {
  for (int step = 0; step < kSteps; ++step) {
    CH_RETURN_IF_ERROR(PlainStep(job, step));
    IntegerDescent(job.model);
    Negate(job.model);
    for (const size_t block : {0, 1}) {
      const Tensor x = BatchOf(job.part, job.parts, step);
      CH_RETURN_IF_ERROR(Backward(Sum(job.model.blocks()[block]->Forward(x))));
      IntegerDescent(job.model);
      Negate(job.model);
    }
    // Nothing that was gathered ahead of a part stays behind.
    const NoGrad no_grad;
    job.model.blocks()[0]->Forward(BatchOf(job.part, job.parts, step));
  }
  return absl::OkStatus();
}

void TrainsPartsAsOneRank(const Axes& axes, uint64_t adversarial_seed = 0) {
  TestModel model(2, 5, 7, 3);
  model.FillWithIntegers();
  Job job{model, 0, 1, nullptr};
  CH_CHECK_OK(TrainParts(job));
  FullyShardOptions options;
  options.reduction.divide_factor = 1;
  ExpectWeights(FullWeights(model),
                absl::StrCat("parts, seed ", adversarial_seed), axes, options,
                1, TrainParts, adversarial_seed);
}

// A part of the model by itself, right after an update.
TEST(FsdpScenariosTest, APartByItselfSeesTheUpdate) {
  for (const Axes& axes : Meshes()) TrainsPartsAsOneRank(axes);
}

TEST(FsdpScenariosTest, APartByItselfSeesTheUpdateOnAdversarialStreams) {
  for (uint64_t seed = 1; seed <= StreamSeeds(20); ++seed) {
    TrainsPartsAsOneRank({{"fsdp", 2}}, seed);
  }
}

TEST(FsdpScenariosTest, ShardsOverJoinedAxes) {
  for (const int dim : {0, -1}) {
    Scenario scenario{absl::StrCat("dim ", dim), PlainStep};
    scenario.options.shard_dim = [dim](const nn::Parameter&) { return dim; };
    TrainsAsOneRank(scenario, {{{"dp", 2}, {"cp", 3}},
                               {{"dp", 2}, {"cp", 2}, {"tp", 2}},
                               {{"dp", 1}, {"cp", 3}, {"tp", 2}}});
    TrainsAsOneRank(scenario, {{{"dp", 2}, {"cp", 2}, {"tp", 2}}}, 3);
  }
}

TEST(FsdpScenariosTest, ReshardsToASmallerMeshAfterForward) {
  for (const int size : {1, 2, 4}) {
    for (const int dim : {0, -1}) {
      Scenario scenario{absl::StrCat("of ", size), PlainStep};
      scenario.repeats = 2;
      scenario.options.post_forward_mesh_size = size;
      scenario.options.shard_dim = [dim](const nn::Parameter&) { return dim; };
      TrainsAsOneRank(scenario, {{{"fsdp", 4}},
                                 {{"replicate", 2}, {"fsdp", 4}},
                                 {{"fsdp", 4}, {"tp", 2}}});
      TrainsAsOneRank(scenario, {{{"fsdp", 4}}}, 5);
    }
  }
}

// Data parallelism alone of parameters that tensor parallelism splits: a mesh
// whose sharding axis has one rank.
TEST(FsdpScenariosTest, KeepsTensorParallelParametersWholeOnEachRank) {
  const std::vector<Axes> meshes = {{{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
                                    {{"replicate", 3}, {"fsdp", 1}, {"tp", 2}}};
  Scenario scenario{"replicated", PlainStep};
  scenario.options.reshard_after_forward = false;
  TrainsAsOneRank(scenario, meshes);
  TrainsAsOneRank(scenario, meshes, 3);
}

// All that one iteration calls, one by one.
std::vector<std::function<absl::Status(Job&, Tensor& loss)>> PublicCalls() {
  const auto call = [](auto f) {
    return [f](Job& job, Tensor& loss) -> absl::Status {
      f(job, loss);
      return absl::OkStatus();
    };
  };
  const auto set = [](void (*change)(Settings&)) {
    return [change](Job& job, Tensor&) { return Configure(job.model, change); };
  };
  return {
      call([](Job& job, Tensor&) { job.root->Unshard(); }),
      call([](Job& job, Tensor& loss) { loss = job.Loss(91); }),
      [](Job&, Tensor& loss) { return Backward(std::exchange(loss, {})); },
      set([](Settings& s) { s.requires_gradient_sync = false; }),
      call([](Job& job, Tensor& loss) { loss = job.Loss(92); }),
      [](Job&, Tensor& loss) { return Backward(std::exchange(loss, {})); },
      set([](Settings& s) { s.requires_gradient_sync = true; }),
      set([](Settings& s) { s.requires_all_reduce = false; }),
      set([](Settings& s) { s.reshard_after_backward = false; }),
      set([](Settings& s) { s.is_last_backward = false; }),
      call([](Job& job, Tensor& loss) { loss = job.Loss(93); }),
      [](Job&, Tensor& loss) { return Backward(std::exchange(loss, {})); },
      call([](Job& job, Tensor& loss) {
        // A part of the model alone.
        loss = Sum(
            job.model.blocks()[0]->Forward(BatchOf(job.part, job.parts, 94)));
      }),
      set([](Settings& s) { s.manual_finalization = true; }),
      [](Job&, Tensor& loss) { return Backward(std::exchange(loss, {})); },
      call([](Job& job, Tensor& loss) { loss = job.Loss(95); }),
      [](Job&, Tensor& loss) { return Backward(std::exchange(loss, {})); },
      call([](Job& job, Tensor&) { job.root->FinalizeBackward(); }),
  };
}

struct Leaving {
  std::string name;
  Axes axes;
  bool offload = false;
  int post_forward_mesh_size = 0;
  bool checkpointed = false;
};

void PrintTo(const Leaving& leaving, std::ostream* out) {
  *out << leaving.name;
}

class FsdpLeavingTest : public ::testing::TestWithParam<Leaving> {};

TEST_P(FsdpLeavingTest, LeavesAnIterationBetweenAnyTwoCalls) {
  const Leaving& leaving = GetParam();
  const Weights dense = Dense({"left", PlainStep});
  const size_t calls = PublicCalls().size();
  for (size_t stop = 0; stop <= calls; ++stop) {
    FullyShardOptions options;
    options.reduction.divide_factor = 1;
    options.cpu_offload = leaving.offload;
    options.post_forward_mesh_size = leaving.post_forward_mesh_size;
    if (stop % 2 == 1 && leaving.post_forward_mesh_size == 0) {
      options.reshard_after_forward = false;
    }
    const auto leave_and_train = [&](Job& job) -> absl::Status {
      if (leaving.checkpointed) {
        for (auto& block : job.model.blocks()) {
          CH_RETURN_IF_ERROR(nn::CheckpointActivations(*block));
        }
      }
      RankContext& context = RankContext::Current();
      const auto held = [&context] {
        return std::pair(context.device_allocator().stats().current,
                         context.host_allocator().stats().current);
      };
      const auto before = held();
      Tensor loss;
      const auto all = PublicCalls();
      for (size_t i = 0; i < stop; ++i) {
        CH_RETURN_IF_ERROR(all[i](job, loss));
      }
      loss = Tensor();
      job.root->ResetIteration();
      CH_RETURN_IF_ERROR(Configure(job.model, [](Settings& s) {
        s.requires_gradient_sync = s.requires_all_reduce = true;
        s.reshard_after_backward = s.is_last_backward = true;
        s.manual_finalization = false;
      }));
      for (nn::Parameter* p : job.model.Parameters()) p->set_grad(Tensor());
      CH_EXPECT_EQ(held(), before) << "left after " << stop;
      for (int step = 0; step < kSteps; ++step) {
        CH_RETURN_IF_ERROR(PlainStep(job, step));
        IntegerDescent(job.model);
      }
      CH_EXPECT_EQ(held(), before) << "trained after " << stop;
      return absl::OkStatus();
    };
    ExpectWeights(dense, absl::StrCat("left after ", stop, " calls"),
                  leaving.axes, options, 1, leave_and_train);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FsdpLeavingTest,
    ::testing::Values(Leaving{"plain", {{"fsdp", 3}}},
                      Leaving{"three_axes",
                              {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}},
                      Leaving{.name = "offloaded",
                              .axes = {{"replicate", 2}, {"fsdp", 2}},
                              .offload = true},
                      Leaving{.name = "in_smaller_groups",
                              .axes = {{"fsdp", 4}},
                              .post_forward_mesh_size = 2},
                      Leaving{.name = "offloaded_checkpointed",
                              .axes = {{"fsdp", 2}},
                              .offload = true,
                              .checkpointed = true},
                      Leaving{.name = "in_smaller_groups_checkpointed",
                              .axes = {{"fsdp", 4}},
                              .post_forward_mesh_size = 2,
                              .checkpointed = true}),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace crosshatch::fsdp
