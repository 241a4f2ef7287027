// SPDX-License-Identifier: Apache-2.0

/// \file
/// VerifyStep on every two options of FSDP in every pair of their values, on
/// every mesh.

#include <cstdio>
#include <string>

#include "crosshatch/tests/fsdp_pairwise_testutil.h"
#include "crosshatch/verify/verify_step.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(FsdpPairwiseVerifiedTest, EveryPairOfOptionsIsVerified) {
  int number = 0;
  for (const PairwiseCase& one : PairwiseCases()) {
    SCOPED_TRACE(one.name);
    ++number;
    const auto report = verify::VerifyStep(
        [&](World& world) { return RunOnRank(one.script, world).status(); },
        one.script.axes, {.divisor = one.script.loss_factor});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok()) << report->ToString();
  }
  std::printf("%d combinations\n", number);
}

}  // namespace
}  // namespace crosshatch
