// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

TEST(AdversarialTrainingTest, GivesTheSameBitsOnEverySeed) {
  for (const Scenario& scenario : AllScenarios()) {
    const Reference reference(scenario);
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      ASSERT_TRUE(reference.IsSound(seed))
          << scenario.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace crosshatch::fsdp
