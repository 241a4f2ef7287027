// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tests/fsdp_conformance.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::fsdp {
namespace {

// Calls `set(settings, on)` with on = false before all backwards but the last.
Step Except(void (*set)(Settings&, bool)) {
  return [set](ScenarioRun& run, int step) -> absl::Status {
    for (int i = 0; i < kMicro; ++i) {
      CH_RETURN_IF_ERROR(
          Configure(run.model, [&](Settings& s) { set(s, i + 1 == kMicro); }));
      CH_RETURN_IF_ERROR(Backward(run.LossOfMicro(step, i)));
    }
    return absl::OkStatus();
  };
}

absl::Status Shard(TestModel& model, const DeviceMesh& mesh,
                   FullyShardOptions options, ScenarioRun& run) {
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
  run.part = 0;
  for (int i = 0; i < data.ndim(); ++i) {
    run.part = run.part * data.size(i) + *data.index(i);
  }
  run.parts = data.size();
  return FullyShard(model, data, options);
}

// An update that the host does not wait for.
void Negate(nn::Module& model) {
  const NoGrad no_grad;
  for (nn::Parameter* p : model.Parameters()) {
    MulInPlace(LocalTensor(p->data()), -1);
  }
}

absl::Status TrainParts(ScenarioRun& run) {
  for (int step = 0; step < kSteps; ++step) {
    CH_RETURN_IF_ERROR(PlainStep(run, step));
    IntegerDescent(run.model);
    Negate(run.model);
    for (const size_t block : {0, 1}) {
      const Tensor x = BatchOf(run.part, run.parts, step);
      CH_RETURN_IF_ERROR(Backward(Sum(run.model.blocks()[block]->Forward(x))));
      IntegerDescent(run.model);
      Negate(run.model);
    }
    // Nothing that was gathered ahead of a part stays behind.
    const NoGrad no_grad;
    run.model.blocks()[0]->Forward(BatchOf(run.part, run.parts, step));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<Axes>& ConformanceMeshes() {
  static const auto* const meshes =
      new std::vector<Axes>{{{"fsdp", 2}},
                            {{"fsdp", 3}},
                            {{"fsdp", 4}},
                            {{"replicate", 2}, {"fsdp", 2}},
                            {{"fsdp", 2}, {"tp", 2}},
                            {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}};
  return *meshes;
}

Tensor ScenarioRun::Loss(int64_t salt) const {
  return Sum(model.Forward(BatchOf(part, parts, salt)));
}

Tensor ScenarioRun::LossOfMicro(int step, int micro) const {
  return Loss(step * kMicro + micro);
}

absl::Status PlainStep(ScenarioRun& run, int step) {
  for (int i = 0; i < kMicro; ++i) {
    CH_RETURN_IF_ERROR(Backward(run.LossOfMicro(step, i)));
  }
  return absl::OkStatus();
}

Weights TrainOnOneRank(const Scenario& scenario) {
  TestModel model(2, 5, 7, 3, scenario.repeats);
  model.FillWithIntegers();
  ScenarioRun run{model, 0, 1, nullptr};
  for (int step = 0; step < kSteps; ++step) {
    if (scenario.before_step) scenario.before_step(model, step);
    CH_CHECK_OK(PlainStep(run, step));
    IntegerDescent(model);
  }
  return FullWeights(model);
}

void ExpectWeights(const Weights& weights, const std::string& what,
                   const Axes& axes, const FullyShardOptions& options,
                   int repeats,
                   const std::function<absl::Status(ScenarioRun&)>& body,
                   uint64_t adversarial_seed) {
  OnMesh(axes,
         [&](const DeviceMesh& mesh) -> absl::Status {
           TestModel model(2, 5, 7, 3, repeats);
           model.FillWithIntegers();
           ScenarioRun run{model, 0, 1, nullptr};
           CH_RETURN_IF_ERROR(Shard(model, mesh, options, run));
           CH_ASSIGN_OR_RETURN(ShardedModule root, ShardedModule::Of(model));
           run.root = &root;
           CH_RETURN_IF_ERROR(body(run));
           CH_EXPECT_EQ(FullWeights(model), weights)
               << what << " on " << MeshLayout::Create(axes)->ToString();
           return mesh.world().context().Synchronize();
         },
         {.test = {.adversarial_seed = adversarial_seed}});
}

void ExpectTrainsAsOneRank(const Scenario& scenario,
                           const std::vector<Axes>& meshes,
                           uint64_t adversarial_seed) {
  const Weights dense = TrainOnOneRank(scenario);
  for (const Axes& axes : meshes) {
    FullyShardOptions options = scenario.options;
    if (!options.reduction.divide_factor) options.reduction.divide_factor = 1;
    const auto train = [&](ScenarioRun& run) -> absl::Status {
      for (int step = 0; step < kSteps; ++step) {
        if (scenario.before_step) scenario.before_step(run.model, step);
        CH_RETURN_IF_ERROR(scenario.step(run, step));
        IntegerDescent(run.model);
      }
      return absl::OkStatus();
    };
    ExpectWeights(dense, scenario.name, axes, options, scenario.repeats, train,
                  adversarial_seed);
  }
}

void ExpectTrainsPartsAsOneRank(const Axes& axes, uint64_t adversarial_seed) {
  TestModel model(2, 5, 7, 3);
  model.FillWithIntegers();
  ScenarioRun run{model, 0, 1, nullptr};
  CH_CHECK_OK(TrainParts(run));
  FullyShardOptions options;
  options.reduction.divide_factor = 1;
  ExpectWeights(FullWeights(model),
                absl::StrCat("parts, seed ", adversarial_seed), axes, options,
                1, TrainParts, adversarial_seed);
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
       [](ScenarioRun& run, int step) -> absl::Status {
         for (int i = 0; i < kMicro; ++i) {
           CH_RETURN_IF_ERROR(Configure(run.model, [&](Settings& s) {
             s.requires_gradient_sync = i > 0;
             s.requires_all_reduce = i > 1;
           }));
           CH_RETURN_IF_ERROR(Backward(run.LossOfMicro(step, i)));
         }
         return absl::OkStatus();
       }},
      {"finalized by hand",
       [](ScenarioRun& run, int step) -> absl::Status {
         CH_RETURN_IF_ERROR(Configure(
             run.model, [&](Settings& s) { s.manual_finalization = true; }));
         CH_RETURN_IF_ERROR(PlainStep(run, step));
         run.root->FinalizeBackward().Wait();
         return absl::OkStatus();
       }},
      {"two forwards before their backwards",
       [](ScenarioRun& run, int step) -> absl::Status {
         const Tensor first = run.LossOfMicro(step, 0);
         const Tensor second = run.LossOfMicro(step, 1);
         CH_RETURN_IF_ERROR(Backward(second));
         CH_RETURN_IF_ERROR(Backward(first));
         return Backward(run.LossOfMicro(step, 2));
       }},
      {"two forwards before their backwards, waiting once",
       [](ScenarioRun& run, int step) -> absl::Status {
         CH_RETURN_IF_ERROR(Configure(
             run.model, [&](Settings& s) { s.is_last_backward = false; }));
         const Tensor first = run.LossOfMicro(step, 0);
         const Tensor second = run.LossOfMicro(step, 1);
         CH_RETURN_IF_ERROR(Backward(second));
         CH_RETURN_IF_ERROR(Backward(first));
         CH_RETURN_IF_ERROR(Configure(
             run.model, [&](Settings& s) { s.is_last_backward = true; }));
         return Backward(run.LossOfMicro(step, 2));
       }},
  };
}

std::vector<Scenario> SettingScenarios() {
  std::vector<Scenario> scenarios;
  const auto add =
      [&](std::string name,
          std::function<absl::Status(ScenarioRun&)> set) -> Scenario& {
    scenarios.push_back(
        {std::move(name), [set](ScenarioRun& run, int step) -> absl::Status {
           CH_RETURN_IF_ERROR(set(run));
           return PlainStep(run, step);
         }});
    return scenarios.back();
  };
  add("gathered by hand", [](ScenarioRun& run) {
    run.root->Unshard().Wait();
    ShardedModule::Of(*run.model.blocks()[1])->Unshard();
    return absl::OkStatus();
  });
  add("freed by hand", [](ScenarioRun& run) {
    run.root->Unshard();
    run.root->Reshard();
    return absl::OkStatus();
  });
  add("memory kept", [](ScenarioRun& run) {
    return Configure(run.model, [](Settings& s) { s.keep_unsharded = true; });
  });
  add("freed after forward, also the root", [](ScenarioRun& run) {
    return Configure(run.model,
                     [](Settings& s) { s.reshard_after_forward = true; });
  });
  add("prefetched in lists", [](ScenarioRun& run) -> absl::Status {
    auto& blocks = run.model.blocks();
    const auto on_root = [&](Settings& s) {
      s.forward_prefetch_modules = {blocks[0].get(), blocks[1].get()};
      s.backward_prefetch_modules = {blocks[1].get()};
    };
    CH_RETURN_IF_ERROR(Configure(run.model, on_root, /*recurse=*/false));
    return Configure(*blocks[1], [&](Settings& s) {
      s.forward_prefetch_modules.emplace();
      s.backward_prefetch_modules = {blocks[0].get()};
    });
  });
  add("only sums", [](ScenarioRun& run) {
    return Configure(run.model,
                     [](Settings& s) { s.reduction.force_sum = true; });
  });
  add("divided as set later", [](ScenarioRun& run) {
    return Configure(run.model,
                     [](Settings& s) { s.reduction.divide_factor = 1; });
  }).options.reduction.divide_factor = 7;
  add("after the optimizer's event", [](ScenarioRun& run) {
    RankContext& context = RankContext::Current();
    run.root->SetPostOptimizerEvent(context.compute_stream().Record());
    return absl::OkStatus();
  });
  add("unused ones reduced", [](ScenarioRun& run) {
    return Configure(run.model,
                     [](Settings& s) { s.reduce_unused_params = true; });
  });
  const auto nothing = [](ScenarioRun&) { return absl::OkStatus(); };
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

}  // namespace crosshatch::fsdp
