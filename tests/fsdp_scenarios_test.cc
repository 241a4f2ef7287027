// SPDX-License-Identifier: Apache-2.0

/// \file
/// Uses of FSDP on every kind of mesh, compared with one rank.
/// fsdp_streams_test runs them on adversarial streams.

#include "crosshatch/tests/fsdp_scenarios.h"

#include <cstddef>
#include <ostream>
#include <string>

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(FsdpScenariosTest, AccumulatesGradientsInEveryWay) {
  for (const Scenario& scenario : Accumulations()) {
    ExpectSameAsOracle(scenario, ScenarioMeshes());
  }
}

TEST(FsdpScenariosTest, ObeysEverySetting) {
  for (const Scenario& scenario : SettingScenarios()) {
    ExpectSameAsOracle(scenario, ScenarioMeshes());
  }
}

TEST(FsdpScenariosTest, APartByItselfSeesTheUpdate) {
  ExpectSameAsOracle(PartsByThemselves(), ScenarioMeshes());
}

TEST(FsdpScenariosTest, ShardsOverJoinedAxes) {
  for (const Scenario& scenario : ShardDims()) {
    ExpectSameAsOracle(scenario, {{{"dp", 2}, {"cp", 3}},
                                  {{"dp", 2}, {"cp", 2}, {"tp", 2}},
                                  {{"dp", 1}, {"cp", 3}, {"tp", 2}}});
  }
}

TEST(FsdpScenariosTest, ReshardsToASmallerMeshAfterForward) {
  for (const Scenario& scenario : SmallerMeshes()) {
    ExpectSameAsOracle(scenario, {{{"fsdp", 4}},
                                  {{"replicate", 2}, {"fsdp", 4}},
                                  {{"fsdp", 4}, {"tp", 2}}});
  }
}

// Only data parallelism of tensor-parallel parameters: the sharding axis has
// one rank.
TEST(FsdpScenariosTest, KeepsTensorParallelParametersWholeOnEachRank) {
  ExpectSameAsOracle(ReplicatedScenario(),
                     {{{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
                      {{"replicate", 3}, {"fsdp", 1}, {"tp", 2}}});
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
  const size_t calls = PublicCalls().size();
  for (size_t stop = 0; stop <= calls; ++stop) {
    Scenario scenario = LeftAfter(stop);
    scenario.checkpointed = leaving.checkpointed;
    scenario.options.cpu_offload = leaving.offload;
    scenario.options.post_forward_mesh_size = leaving.post_forward_mesh_size;
    if (stop % 2 == 1 && leaving.post_forward_mesh_size == 0) {
      scenario.options.reshard_after_forward = false;
    }
    ExpectSameAsOracle(scenario, {leaving.axes});
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
}  // namespace crosshatch
