// SPDX-License-Identifier: Apache-2.0

/// \file
/// Scenarios of FSDP (fsdp_conformance.h) on adversarial streams, which run
/// apart and free memory early. CROSSHATCH_FUZZ_STREAM_SEEDS: the number of
/// seeds.

#include <cstdint>
#include <string>

#include "crosshatch/dtensor/redistribution/fuzz_testutil.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tests/fsdp_conformance.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

uint64_t StreamSeeds(unsigned otherwise) {
  return FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", otherwise);
}

TEST(FsdpStreamsTest, AccumulatesGradientsInEveryWay) {
  for (const Scenario& scenario : Accumulations()) {
    for (uint64_t seed = 1; seed <= StreamSeeds(3); ++seed) {
      ExpectTrainsAsOneRank(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, seed);
    }
  }
}

TEST(FsdpStreamsTest, ObeysEverySetting) {
  for (const Scenario& scenario : SettingScenarios()) {
    ExpectTrainsAsOneRank(scenario, {{{"replicate", 2}, {"fsdp", 2}}}, 11);
  }
}

TEST(FsdpStreamsTest, APartByItselfSeesTheUpdate) {
  for (uint64_t seed = 1; seed <= StreamSeeds(20); ++seed) {
    ExpectTrainsPartsAsOneRank({{"fsdp", 2}}, seed);
  }
}

TEST(FsdpStreamsTest, ShardsAndReshards) {
  for (const int dim : {0, -1}) {
    Scenario scenario{"dim " + std::to_string(dim), PlainStep};
    scenario.options.shard_dim = [dim](const nn::Parameter&) { return dim; };
    ExpectTrainsAsOneRank(scenario, {{{"dp", 2}, {"cp", 2}, {"tp", 2}}}, 3);
    for (const int size : {1, 2, 4}) {
      scenario.repeats = 2;
      scenario.options.post_forward_mesh_size = size;
      ExpectTrainsAsOneRank(scenario, {{{"fsdp", 4}}}, 5);
    }
  }
}

TEST(FsdpStreamsTest, KeepsTensorParallelParametersWholeOnEachRank) {
  Scenario scenario{"replicated", PlainStep};
  scenario.options.reshard_after_forward = false;
  ExpectTrainsAsOneRank(scenario,
                        {{{"replicate", 2}, {"fsdp", 1}, {"tp", 2}},
                         {{"replicate", 3}, {"fsdp", 1}, {"tp", 2}}},
                        3);
}

}  // namespace
}  // namespace crosshatch::fsdp
