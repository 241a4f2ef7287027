// SPDX-License-Identifier: Apache-2.0

/// \file
/// CROSSHATCH_FUZZ_STREAM_SEEDS: the number of seeds.

#include <cstdint>

#include "crosshatch/dtensor/layout/layout_testutil.h"
#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

TEST(AdversarialTrainingTest, HasTheSameBitsOnEverySeed) {
  const uint64_t seeds = FuzzCases("CROSSHATCH_FUZZ_STREAM_SEEDS", 30);
  for (const Scenario& scenario : AllScenarios()) {
    const Reference reference(scenario);
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      ASSERT_TRUE(reference.IsSound(seed))
          << scenario.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
