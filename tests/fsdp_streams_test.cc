// SPDX-License-Identifier: Apache-2.0

/// \file
/// Scenarios of FSDP on adversarial streams, which run apart and free memory
/// early. CROSSHATCH_FUZZ_STREAM_SEEDS sets the number of seeds.

#include <cstdint>

#include "crosshatch/dtensor/redistribution/fuzz_testutil.h"
#include "crosshatch/tests/fsdp_scenarios.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

uint64_t StreamSeeds(unsigned otherwise) {
  return FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", otherwise);
}

TEST(FsdpStreamsTest, AccumulatesGradientsInEveryWay) {
  for (const Scenario& scenario : Accumulations()) {
    for (uint64_t seed = 1; seed <= StreamSeeds(3); ++seed) {
      ExpectSameAsOracle(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, seed);
    }
  }
}

TEST(FsdpStreamsTest, ObeysEverySetting) {
  for (const Scenario& scenario : SettingScenarios()) {
    ExpectSameAsOracle(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, 11);
  }
}

TEST(FsdpStreamsTest, APartByItselfSeesTheUpdate) {
  for (uint64_t seed = 1; seed <= StreamSeeds(20); ++seed) {
    ExpectSameAsOracle(PartsByThemselves(), {{{"fsdp", 2}}}, seed);
  }
}

TEST(FsdpStreamsTest, ShardsOverJoinedAxes) {
  for (const Scenario& scenario : ShardDims()) {
    ExpectSameAsOracle(scenario, {{{"dp", 2}, {"cp", 2}, {"tp", 2}}}, 3);
  }
}

TEST(FsdpStreamsTest, ReshardsToASmallerMeshAfterForward) {
  for (const Scenario& scenario : SmallerMeshes()) {
    ExpectSameAsOracle(scenario, {{{"fsdp", 4}}}, 5);
  }
}

TEST(FsdpStreamsTest, KeepsTensorParallelParametersWholeOnEachRank) {
  ExpectSameAsOracle(ReplicatedScenario(),
                     {{{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
                      {{"replicate", 3}, {"fsdp", 1}, {"tp", 2}}},
                     3);
}

TEST(FsdpStreamsTest, LeavesAnIterationBetweenAnyTwoCalls) {
  for (size_t stop = 0; stop <= PublicCalls().size(); ++stop) {
    ExpectSameAsOracle(LeftAfter(stop), {{{"fsdp", 2}}}, 7);
  }
}

}  // namespace
}  // namespace crosshatch
