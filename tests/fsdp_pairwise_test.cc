// SPDX-License-Identifier: Apache-2.0

/// \file
/// Every two options of FSDP in every pair of their values, on every mesh:
/// losses and weights equal one rank's.

#include "crosshatch/tests/fsdp_pairwise_testutil.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(FsdpPairwiseTest, TheCombinationsCoverAllPairs) {
  EXPECT_EQ(CoveredPairs(), CompatiblePairs());
}

TEST(FsdpPairwiseTest, EveryPairOfOptionsTrainsAsOneRankDoes) {
  for (const PairwiseCase& one : PairwiseCases()) {
    SCOPED_TRACE(one.name);
    ExpectSameAsOracle(one.script);
    if (testing::Test::HasFailure()) break;  // The other ranks fail alike.
  }
}

}  // namespace
}  // namespace crosshatch
