// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "crosshatch/base/check.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/dtensor.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/fsdp/sharded_module.h"
#include "crosshatch/fsdp/testutil.h"
#include "crosshatch/nn/activation_checkpoint.h"
#include "crosshatch/nn/optim/adamw.h"
#include "crosshatch/tensor/autograd.h"
#include "crosshatch/testing/batch.h"
#include "crosshatch/testing/ranks.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

constexpr int kSteps = 3;
constexpr int kInjectedStep = 1;
constexpr int64_t kDim = 4;

void AppendBits(const Tensor& tensor, std::vector<uint64_t>& bits) {
  for (const double value : tensor.ToVector<double>()) {
    std::memcpy(&bits.emplace_back(), &value, sizeof(value));
  }
}

// The host reads nothing before the end, so the streams may diverge widely.
absl::Status TrainOn(World& world, const Scenario& scenario,
                     const FaultInjector* injector, RankResult& result) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      InitDeviceMesh(world, scenario.axes));
  // Every mesh divides these sizes, so all ranks issue the same operations and
  // a fault is in the same place on all.
  TestModel model(scenario.blocks, kDim, 8, 4);
  model.FillWithIntegers();
  for (auto& block : model.blocks()) {
    CH_RETURN_IF_ERROR(FullyShard(*block, mesh, scenario.options));
    if (scenario.checkpointed)
      CH_RETURN_IF_ERROR(nn::CheckpointActivations(*block));
  }
  CH_RETURN_IF_ERROR(FullyShard(model, mesh, scenario.options));
  CH_ASSIGN_OR_RETURN(ShardedModule sharded, ShardedModule::Of(model));
  nn::AdamW optimizer(model.Parameters(), {.lr = 0.125});
  std::vector<Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    if (injector != nullptr && step == kInjectedStep) {
      result.first_wait = injector->log().waits.size();
      result.first_lease = injector->log().leases.size();
    }
    for (int i = 0; i < scenario.backwards_per_step; ++i) {
      const bool last = i + 1 == scenario.backwards_per_step;
      using Postponed = Scenario::Postponed;
      CH_RETURN_IF_ERROR(Configure(model, [&](Settings& s) {
        s.requires_all_reduce =
            last || scenario.postponed != Postponed::kAllReduce;
        s.requires_gradient_sync =
            last || scenario.postponed != Postponed::kReduction;
      }));
      const Tensor loss = Sum(model.Forward(
          SmallIntegers({2, kDim}, 10 * step + 3 * i + world.rank())));
      CH_RETURN_IF_ERROR(Backward(loss));
      losses.push_back(loss.Detach());
    }
    CH_RETURN_IF_ERROR(optimizer.Step());
    optimizer.ZeroGrad();
    if (scenario.steps_of_a_part) {
      const Tensor loss = Sum(model.blocks()[0]->Forward(
          SmallIntegers({2, kDim}, 100 + 10 * step + world.rank())));
      CH_RETURN_IF_ERROR(Backward(loss));
      losses.push_back(loss.Detach());
      CH_RETURN_IF_ERROR(optimizer.Step());
      optimizer.ZeroGrad();
    }
    if (injector != nullptr && step == kInjectedStep) {
      result.last_wait = injector->log().waits.size();
      result.last_lease = injector->log().leases.size();
    }
  }
  if (world.context().dry_run()) return absl::OkStatus();
  NoGrad no_grad;
  for (const Tensor& loss : losses) AppendBits(loss, result.bits);
  for (nn::Parameter* p : model.Parameters()) {
    AppendBits(LocalTensor(p->data()), result.bits);
  }
  return absl::OkStatus();
}

TrainingResult Train(const Scenario& scenario, uint64_t seed,
                     std::optional<Fault> fault) {
  TrainingResult result(static_cast<size_t>(scenario.ranks()));
  std::vector<std::unique_ptr<FaultInjector>> injectors;
  JobOptions options = {.threads_per_rank = 1,
                        .test = {.adversarial_seed = seed}};
  for (size_t r = 0; fault.has_value() && r < result.size(); ++r) {
    injectors.push_back(std::make_unique<FaultInjector>(*fault));
    options.sinks.push_back(injectors.back().get());
    options.test.decorators.push_back(injectors.back().get());
  }
  RunRanks(
      scenario.ranks(),
      [&](World& world) {
        const auto rank = static_cast<size_t>(world.rank());
        return TrainOn(world, scenario,
                       injectors.empty() ? nullptr : injectors[rank].get(),
                       result[rank]);
      },
      options);
  for (size_t r = 0; r < injectors.size(); ++r) {
    result[r].log = injectors[r]->log();
    result[r].overlaps = injectors[r]->overlaps();
  }
  return result;
}

bool SameBits(const TrainingResult& a, const TrainingResult& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    if (a[r].bits != b[r].bits) return false;
  }
  return true;
}

}  // namespace

absl::Status TrainScenario(World& world, const Scenario& scenario) {
  RankResult result;
  return TrainOn(world, scenario, /*injector=*/nullptr, result);
}

int Scenario::ranks() const { return MeshAxes(axes).ranks(); }

std::vector<Scenario> AllScenarios() {
  using Postponed = Scenario::Postponed;
  const std::vector<MeshAxis> hsdp = {{"replicate", 2}, {"fsdp", 2}};
  // Casts shards and reduced gradients, which accumulate.
  FullyShardOptions wide;
  wide.mixed_precision = {.param_dtype = kFloat64, .reduce_dtype = kFloat64};
  FullyShardOptions offload = wide;
  offload.cpu_offload = true;
  FullyShardOptions smaller_mesh;
  smaller_mesh.post_forward_mesh_size = 2;
  return {
      {"plain", {{"fsdp", 2}}, {}},
      {.name = "hsdp", .axes = hsdp, .options = wide, .backwards_per_step = 2},
      {.name = "hsdp_one_all_reduce",
       .axes = hsdp,
       .options = wide,
       .backwards_per_step = 2,
       .postponed = Postponed::kAllReduce},
      {.name = "smaller_mesh_one_reduction",
       .axes = {{"fsdp", 4}},
       .options = smaller_mesh,
       .backwards_per_step = 2,
       .postponed = Postponed::kReduction},
      {.name = "hsdp_offload",
       .axes = hsdp,
       .options = offload,
       .backwards_per_step = 2},
      {.name = "checkpointed", .axes = {{"fsdp", 2}}, .checkpointed = true},
      {.name = "steps_of_a_part",
       .axes = {{"fsdp", 2}},
       .steps_of_a_part = true},
  };
}

Scenario ScenarioOf(const std::string& name) {
  const std::vector<Scenario> all = AllScenarios();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const auto& s) { return s.name == name; });
  CH_CHECK(found != all.end()) << name;
  return *found;
}

Reference::Reference(Scenario scenario)
    : scenario_(std::move(scenario)),
      calm_(Train(scenario_, 0, std::nullopt)),
      logged_(Train(scenario_, 1, Fault())) {
  EXPECT_TRUE(SameBits(calm_, logged_)) << name();
  for (const RankResult& other : logged_) {
    EXPECT_EQ(other.log.waits.size(), log().waits.size());
    EXPECT_EQ(other.log.leases.size(), log().leases.size());
    for (size_t i = 0; i < log().waits.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      EXPECT_EQ(other.log.DescribeWait(index), log().DescribeWait(index));
    }
  }
}

bool Reference::IsSound(uint64_t seed) const {
  return SameBits(Train(scenario_, seed, std::nullopt), calm_);
}

Verdict Reference::Find(Fault fault) const {
  Verdict verdict;
  if (fault.kind == Fault::Kind::kDropWait) {
    if (log().IsCovered(fault.index)) {
      verdict.equivalent = "other waits cover it";
      return verdict;
    }
    Fault late = fault;
    late.late = log().AwaitedBy(fault.index);
    if (SameBits(Train(scenario_, 1, late), calm_)) {
      verdict.equivalent = "what runs ahead of it has nothing to do with it";
      return verdict;
    }
  } else if (fault.kind != Fault::Kind::kWrongStream) {
    bool ordered = true;
    for (const RankResult& rank : Train(scenario_, 1, fault)) {
      ordered = ordered && rank.log.NextLeaseIsOrdered(fault.index);
      verdict.overlap = verdict.overlap || rank.overlaps > 0;
    }
    if (ordered) {
      verdict.equivalent = "whoever has the memory next comes after all uses";
      return verdict;
    }
  }
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    if (SameBits(Train(scenario_, seed, fault), calm_)) continue;
    verdict.seed = seed;
    break;
  }
  return verdict;
}

std::vector<int64_t> Reference::Waits(
    const std::function<bool(const LoggedWait&)>& wanted) const {
  std::vector<int64_t> found;
  for (size_t i = rank().first_wait; i < rank().last_wait; ++i) {
    if (wanted(log().waits[i])) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

std::vector<int64_t> Reference::Leases(
    const std::function<bool(const LoggedLease&)>& wanted) const {
  std::vector<int64_t> found;
  for (size_t i = rank().first_lease; i < rank().last_lease; ++i) {
    if (wanted(log().leases[i])) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

}  // namespace crosshatch::fsdp
