// SPDX-License-Identifier: Apache-2.0

/// \file
/// Uses of FSDP that fsdp_pairwise_test and fsdp_script_test do not have, on
/// every kind of mesh and on adversarial streams, which run apart and free
/// memory early: results are those of one rank. CROSSHATCH_FUZZ_STREAM_SEEDS
/// sets the number of seeds.

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/fsdp/policy.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tests/fsdp_script.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

/// A step of a program, whose backwards accumulate gradients.
struct Scenario {
  std::string name;
  std::vector<ScriptCall> step;
  fsdp::FullyShardOptions options = {};
  int repeats = 1;  ///< How often the modules run in a forward.
  std::vector<ScriptCall> before = {};  ///< The first step.
  bool checkpointed = false;
};

using Axes = std::vector<MeshAxis>;

uint64_t StreamSeeds(unsigned otherwise) {
  return FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", otherwise);
}

using Kind = ScriptCall::Kind;

constexpr int kSteps = 2;
constexpr int kMicro = 3;  // Backwards in a step.

// The parts of the model by index.
constexpr int kFirstBlock = 1;
constexpr int kSecondBlock = 4;

ScriptCall Do(Kind kind, int part = 0, int value = 0) {
  return {.kind = kind, .part = part, .value = value, .recurse = true};
}
ScriptCall On(Kind kind, int part = 0, int value = 0) {
  ScriptCall call = Do(kind, part, value);
  call.on = true;
  return call;
}
ScriptCall Off(Kind kind) { return Do(kind); }

// Returns the forward of a micro-batch, and the backward of the oldest loss.
ScriptCall F(int micro) { return Do(Kind::kForward, 0, micro); }
const ScriptCall B = Do(Kind::kBackward);

std::vector<ScriptCall> operator+(std::vector<ScriptCall> calls,
                                  const std::vector<ScriptCall>& more) {
  calls.insert(calls.end(), more.begin(), more.end());
  return calls;
}

std::vector<ScriptCall> PlainStep() { return {F(0), B, F(1), B, F(2), B}; }

FsdpScript ScriptOf(const Scenario& scenario, const Axes& axes) {
  using Form = PartSpec::Form;
  using Split = PartSpec::Split;
  const PartSpec block = {
      .form = Form::kResidual,
      .parts = {{.bias = true, .relu = true, .split = Split::kColumns},
                {.split = Split::kRows}}};
  FsdpScript script;
  script.axes = axes;
  script.model = {.form = Form::kChain,
                  .parts = {block, block, {.bias = true}}};
  for (PartSpec& part : script.model.parts) {
    if (part.parts.empty()) continue;
    part.repeats = scenario.repeats;
    part.checkpointed = scenario.checkpointed;
  }
  fsdp::FullyShardOptions options = scenario.options;
  if (!options.reduction.divide_factor) options.reduction.divide_factor = 1;
  script.loss_factor = 1;
  for (const int part : {kFirstBlock, kSecondBlock, 0}) {
    script.shards.push_back({.parts = {part}, .options = options});
  }
  script.calls = scenario.before;
  for (int step = 0; step < kSteps; ++step) {
    for (ScriptCall call : scenario.step) {
      if (call.kind == Kind::kForward || call.kind == Kind::kForwardPart) {
        call.value += step * kMicro;
      }
      script.calls.push_back(call);
    }
    script.calls.push_back(Do(Kind::kStep));
  }
  if (!scenario.before.empty()) {
    script.calls.push_back(Do(Kind::kExpectNoMemory));
  }
  return script;
}

// Returns one mesh of each kind: sharded, replicated, with tensor parallelism.
std::vector<Axes> ScenarioMeshes() {
  return {{{"fsdp", 2}},
          {{"fsdp", 3}},
          {{"fsdp", 4}},
          {{"replicate", 2}, {"fsdp", 2}},
          {{"fsdp", 2}, {"tp", 2}},
          {{"replicate", 2}, {"fsdp", 2}, {"tp", 2}}};
}

// Modules run three times in a forward, and the way to accumulate gradients
// changes within a step.
std::vector<Scenario> Mixtures() {
  return {
      {.name = "modules run three times", .step = PlainStep(), .repeats = 3},
      {"first nothing, then within replicas, then all",
       {Off(Kind::kSync), Off(Kind::kAllReduce), F(0), B, On(Kind::kSync), F(1),
        B, On(Kind::kAllReduce), F(2), B}},
      {"two forwards before their backwards, waiting once",
       {Off(Kind::kLastBackward), F(0), F(1), Do(Kind::kBackward, 0, 1), B,
        On(Kind::kLastBackward), F(2), B}}};
}

// Shards an uneven dim of joined axes, or another dim.
std::vector<Scenario> ShardDims() {
  std::vector<Scenario> scenarios;
  for (const int dim : {0, -1}) {
    scenarios.push_back({absl::StrCat("dim ", dim), PlainStep()});
    scenarios.back().options.shard_dim = [dim](const nn::Parameter&) {
      return dim;
    };
  }
  for (const int rows : {1, 2, 100}) {
    scenarios.push_back(
        {absl::StrCat("ragged by ", rows, " rows"), PlainStep()});
    scenarios.back().options.ragged_shard = {
        .rows_per_block = [rows](const nn::Parameter&) { return rows; }};
  }
  return scenarios;
}

// Reshards to smaller meshes after the forward.
std::vector<Scenario> SmallerMeshes() {
  std::vector<Scenario> scenarios;
  for (const int size : {1, 2, 4}) {
    for (Scenario scenario : ShardDims()) {
      absl::StrAppend(&scenario.name, " of ", size, " ranks");
      scenario.repeats = 2;
      scenario.options.post_forward_mesh_size = size;
      scenarios.push_back(std::move(scenario));
    }
  }
  return scenarios;
}

// Keeps parameters whole on the ranks of an axis of one rank.
Scenario ReplicatedScenario() {
  Scenario scenario{"replicated", PlainStep()};
  scenario.options.reshard_after_forward = false;
  return scenario;
}

// Runs parts of the model by themselves, right after an update.
Scenario PartsByThemselves() {
  std::vector<ScriptCall> calls =
      PlainStep() + std::vector{Do(Kind::kStep), Do(Kind::kNegate)};
  for (const int block : {kFirstBlock, kSecondBlock}) {
    calls = calls + std::vector{On(Kind::kForwardPart, block), B,
                                Do(Kind::kStep), Do(Kind::kNegate)};
  }
  // Nothing that was prefetched for a part remains.
  calls.push_back(Do(Kind::kForwardPart, kFirstBlock));
  return {"parts", calls};
}

std::vector<ScriptCall> PublicCalls() {
  return {Do(Kind::kUnshard),
          F(41),
          B,
          Off(Kind::kSync),
          F(42),
          B,
          On(Kind::kSync),
          Off(Kind::kAllReduce),
          Off(Kind::kReshardAfterBackward),
          Off(Kind::kLastBackward),
          F(43),
          B,
          On(Kind::kForwardPart, kFirstBlock, 44),
          On(Kind::kManual),
          B,
          F(45),
          B,
          Do(Kind::kFinalize)};
}

// Leaves an iteration after `count` of the PublicCalls; it leaves no memory.
Scenario LeftAfter(size_t count) {
  std::vector<ScriptCall> calls = PublicCalls();
  calls.resize(count);
  return {.name = absl::StrCat("left after ", count, " calls"),
          .step = PlainStep(),
          .before = calls + std::vector{Do(Kind::kReset), On(Kind::kSync),
                                        On(Kind::kAllReduce),
                                        On(Kind::kReshardAfterBackward),
                                        On(Kind::kLastBackward),
                                        Off(Kind::kManual), Do(Kind::kZeroGrad),
                                        Do(Kind::kExpectNoMemory)}};
}

// Expects the results of one rank on each mesh, in two steps.
void ExpectSameAsOracle(const Scenario& scenario,
                        const std::vector<Axes>& meshes,
                        uint64_t adversarial_seed = 0) {
  for (const Axes& axes : meshes) {
    FsdpScript script = ScriptOf(scenario, axes);
    script.adversarial_seed = adversarial_seed;
    SCOPED_TRACE(absl::StrCat(scenario.name, ":\n", ToString(script)));
    ExpectSameAsOracle(script);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(FsdpScenariosTest, MixesRunsAndReductions) {
  for (const Scenario& scenario : Mixtures()) {
    ExpectSameAsOracle(scenario, ScenarioMeshes());
    for (uint64_t seed = 1; seed <= StreamSeeds(3); ++seed) {
      ExpectSameAsOracle(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, seed);
    }
  }
}

TEST(FsdpScenariosTest, APartByItselfSeesTheUpdate) {
  ExpectSameAsOracle(PartsByThemselves(), ScenarioMeshes());
  for (uint64_t seed = 1; seed <= StreamSeeds(20); ++seed) {
    ExpectSameAsOracle(PartsByThemselves(), {{{"fsdp", 2}}}, seed);
  }
}

TEST(FsdpScenariosTest, ShardsOverJoinedAxes) {
  for (const Scenario& scenario : ShardDims()) {
    ExpectSameAsOracle(scenario, {{{"dp", 2}, {"cp", 3}},
                                  {{"dp", 2}, {"cp", 2}, {"tp", 2}},
                                  {{"dp", 1}, {"cp", 3}, {"tp", 2}}});
    ExpectSameAsOracle(scenario, {{{"dp", 2}, {"cp", 2}, {"tp", 2}}}, 3);
  }
}

TEST(FsdpScenariosTest, ReshardsToASmallerMeshAfterForward) {
  for (const Scenario& scenario : SmallerMeshes()) {
    ExpectSameAsOracle(scenario, {{{"fsdp", 4}},
                                  {{"replicate", 2}, {"fsdp", 4}},
                                  {{"fsdp", 4}, {"tp", 2}}});
    ExpectSameAsOracle(scenario, {{{"fsdp", 4}}}, 5);
  }
}

// Only data parallelism of tensor-parallel parameters: the sharding axis has
// one rank.
TEST(FsdpScenariosTest, KeepsTensorParallelParametersWholeOnEachRank) {
  for (const uint64_t seed : {0, 3}) {
    ExpectSameAsOracle(ReplicatedScenario(),
                       {{{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
                        {{"replicate", 3}, {"fsdp", 1}, {"tp", 2}}},
                       seed);
  }
}

struct Leaving {
  std::string name;
  Axes axes;
  bool offload = false;
  int post_forward_mesh_size = 0;
  bool checkpointed = false;
  uint64_t adversarial_seed = 0;
};

void PrintTo(const Leaving& leaving, std::ostream* out) {
  *out << leaving.name;
}

class FsdpLeavingTest : public ::testing::TestWithParam<Leaving> {};

TEST_P(FsdpLeavingTest, LeavesAnIterationBetweenAnyTwoCalls) {
  const Leaving& leaving = GetParam();
  const size_t calls = PublicCalls().size();
  for (size_t stop = 0; stop <= calls; ++stop) {
    Scenario scenario = LeftAfter(stop);
    scenario.checkpointed = leaving.checkpointed;
    scenario.options.cpu_offload = leaving.offload;
    scenario.options.post_forward_mesh_size = leaving.post_forward_mesh_size;
    if (stop % 2 == 1 && leaving.post_forward_mesh_size == 0) {
      scenario.options.reshard_after_forward = false;
    }
    ExpectSameAsOracle(scenario, {leaving.axes}, leaving.adversarial_seed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FsdpLeavingTest,
    ::testing::Values(Leaving{"plain", {{"fsdp", 3}}},
                      Leaving{.name = "adversarial",
                              .axes = {{"fsdp", 2}},
                              .adversarial_seed = 7},
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
}  // namespace crosshatch
