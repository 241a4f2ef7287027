// SPDX-License-Identifier: Apache-2.0

/// \file
/// What a program may ask of FSDP, on every kind of mesh, next to one rank
/// (fsdp_conformance.h). fsdp_streams_test has adversarial streams.

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/nn/checkpoint.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/expect.h"
#include "crosshatch/tests/fsdp_conformance.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

TEST(FsdpScenariosTest, AccumulatesGradientsInEveryWay) {
  for (const Scenario& scenario : Accumulations()) {
    ExpectTrainsAsOneRank(scenario, ConformanceMeshes());
  }
}

TEST(FsdpScenariosTest, ObeysEverySetting) {
  for (const Scenario& scenario : SettingScenarios()) {
    ExpectTrainsAsOneRank(scenario, ConformanceMeshes());
  }
}

// A part of the model by itself, right after an update.
TEST(FsdpScenariosTest, APartByItselfSeesTheUpdate) {
  for (const Axes& axes : ConformanceMeshes()) ExpectTrainsPartsAsOneRank(axes);
}

TEST(FsdpScenariosTest, ShardsOverJoinedAxes) {
  for (const int dim : {0, -1}) {
    Scenario scenario{absl::StrCat("dim ", dim), PlainStep};
    scenario.options.shard_dim = [dim](const nn::Parameter&) { return dim; };
    ExpectTrainsAsOneRank(scenario, {{{"dp", 2}, {"cp", 3}},
                                     {{"dp", 2}, {"cp", 2}, {"tp", 2}},
                                     {{"dp", 1}, {"cp", 3}, {"tp", 2}}});
  }
}

TEST(FsdpScenariosTest, ReshardsToASmallerMeshAfterForward) {
  for (const int size : {1, 2, 4}) {
    for (const int dim : {0, -1}) {
      Scenario scenario{absl::StrCat("of ", size), PlainStep};
      scenario.repeats = 2;
      scenario.options.post_forward_mesh_size = size;
      scenario.options.shard_dim = [dim](const nn::Parameter&) { return dim; };
      ExpectTrainsAsOneRank(scenario, {{{"fsdp", 4}},
                                       {{"replicate", 2}, {"fsdp", 4}},
                                       {{"fsdp", 4}, {"tp", 2}}});
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
  ExpectTrainsAsOneRank(scenario, meshes);
}

// All that one iteration calls, one by one.
std::vector<std::function<absl::Status(ScenarioRun&, Tensor& loss)>>
PublicCalls() {
  const auto call = [](auto f) {
    return [f](ScenarioRun& run, Tensor& loss) -> absl::Status {
      f(run, loss);
      return absl::OkStatus();
    };
  };
  const auto set = [](void (*change)(Settings&)) {
    return [change](ScenarioRun& run, Tensor&) {
      return Configure(run.model, change);
    };
  };
  return {
      call([](ScenarioRun& run, Tensor&) { run.root->Unshard(); }),
      call([](ScenarioRun& run, Tensor& loss) { loss = run.Loss(91); }),
      [](ScenarioRun&, Tensor& loss) {
        return Backward(std::exchange(loss, {}));
      },
      set([](Settings& s) { s.requires_gradient_sync = false; }),
      call([](ScenarioRun& run, Tensor& loss) { loss = run.Loss(92); }),
      [](ScenarioRun&, Tensor& loss) {
        return Backward(std::exchange(loss, {}));
      },
      set([](Settings& s) { s.requires_gradient_sync = true; }),
      set([](Settings& s) { s.requires_all_reduce = false; }),
      set([](Settings& s) { s.reshard_after_backward = false; }),
      set([](Settings& s) { s.is_last_backward = false; }),
      call([](ScenarioRun& run, Tensor& loss) { loss = run.Loss(93); }),
      [](ScenarioRun&, Tensor& loss) {
        return Backward(std::exchange(loss, {}));
      },
      call([](ScenarioRun& run, Tensor& loss) {
        // A part of the model alone.
        loss = Sum(
            run.model.blocks()[0]->Forward(BatchOf(run.part, run.parts, 94)));
      }),
      set([](Settings& s) { s.manual_finalization = true; }),
      [](ScenarioRun&, Tensor& loss) {
        return Backward(std::exchange(loss, {}));
      },
      call([](ScenarioRun& run, Tensor& loss) { loss = run.Loss(95); }),
      [](ScenarioRun&, Tensor& loss) {
        return Backward(std::exchange(loss, {}));
      },
      call([](ScenarioRun& run, Tensor&) { run.root->FinalizeBackward(); }),
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
  const Weights dense = TrainOnOneRank({"left", PlainStep});
  const size_t calls = PublicCalls().size();
  for (size_t stop = 0; stop <= calls; ++stop) {
    FullyShardOptions options;
    options.reduction.divide_factor = 1;
    options.cpu_offload = leaving.offload;
    options.post_forward_mesh_size = leaving.post_forward_mesh_size;
    if (stop % 2 == 1 && leaving.post_forward_mesh_size == 0) {
      options.reshard_after_forward = false;
    }
    const auto leave_and_train = [&](ScenarioRun& run) -> absl::Status {
      if (leaving.checkpointed) {
        for (auto& block : run.model.blocks()) {
          CH_RETURN_IF_ERROR(nn::Checkpoint(*block));
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
        CH_RETURN_IF_ERROR(all[i](run, loss));
      }
      loss = Tensor();
      run.root->ResetIteration();
      CH_RETURN_IF_ERROR(Configure(run.model, [](Settings& s) {
        s.requires_gradient_sync = s.requires_all_reduce = true;
        s.reshard_after_backward = s.is_last_backward = true;
        s.manual_finalization = false;
      }));
      for (nn::Parameter* p : run.model.Parameters()) p->set_grad(Tensor());
      CH_EXPECT_EQ(held(), before) << "left after " << stop;
      for (int step = 0; step < kSteps; ++step) {
        CH_RETURN_IF_ERROR(PlainStep(run, step));
        IntegerDescent(run.model);
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
