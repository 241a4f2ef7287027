// SPDX-License-Identifier: Apache-2.0

/// \file
/// Omits each wait of a training step and ends each lease too early, one at a
/// time. Each fault is detected within a thousand seeds, unless the log of
/// issued work proves that it has no effect. Without a fault nothing is
/// detected.

#include <cstdint>
#include <iostream>
#include <string>

#include "crosshatch/fsdp/tests/adversarial_training_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch::fsdp {
namespace {

void Sweep(const Reference& reference) {
  std::cout << reference.name() << "\n";
  const RankResult& rank = reference.rank();
  int found = 0;
  int equivalent = 0;
  const auto judge = [&](Fault fault, const char* what,
                         const std::string& where) {
    const Verdict verdict = reference.Find(fault);
    std::cout << "  " << what << " " << where << ": ";
    if (!verdict.equivalent.empty()) {
      ++equivalent;
      std::cout << verdict.equivalent << "\n";
      return;
    }
    const bool shows = verdict.seed != 0 || verdict.overlap;
    EXPECT_TRUE(shows) << what << " " << where << " was not found";
    found += shows;
    std::cout << "seed " << verdict.seed
              << (verdict.overlap ? ", leases overlap" : "") << std::endl;
  };
  for (size_t i = rank.first_wait; i < rank.last_wait; ++i) {
    const auto index = static_cast<int64_t>(i);
    judge({Fault::Kind::kDropWait, index}, "drop",
          reference.log().DescribeWait(index));
  }
  for (size_t i = rank.first_lease; i < rank.last_lease; ++i) {
    const auto index = static_cast<int64_t>(i);
    const std::string where = reference.log().DescribeLease(index);
    if (rank.log.leases[i].used_elsewhere) {
      judge({Fault::Kind::kForgetUses, index}, "forget the uses of", where);
    }
    judge({Fault::Kind::kReleaseEarly, index}, "release early", where);
  }
  std::cout << "  " << found << " found, " << equivalent << " equivalent\n";
}

class InjectedFaultsSweepTest : public testing::TestWithParam<Scenario> {};

TEST_P(InjectedFaultsSweepTest, EveryWaitAndLeaseOfAStepCounts) {
  Sweep(Reference(GetParam()));
}

TEST_P(InjectedFaultsSweepTest, PassesWithoutFaults) {
  const Reference reference(GetParam());
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_TRUE(reference.IsSound(seed))
        << reference.name() << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, InjectedFaultsSweepTest,
                         testing::ValuesIn(AllScenarios()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace crosshatch::fsdp
