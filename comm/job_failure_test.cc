// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/job_failure.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(JobFailure, OfARankIsTheRanksErrorAndNewsToTheOthers) {
  const FailureNotice failure = {.world_ranks = {2},
                                 .error = absl::NotFoundError("x.bin")};
  EXPECT_EQ(ResultOf(failure), absl::NotFoundError("rank 2: x.bin"));
  EXPECT_EQ(ErrorFor(failure, 2), absl::NotFoundError("x.bin"));
  EXPECT_EQ(ErrorFor(failure, 0), absl::AbortedError("rank 2 failed: x.bin"));
}

TEST(JobFailure, WhatRanksToldOneAnotherNamesTheRankThatItHappenedOn) {
  const absl::Status told = absl::NotFoundError("on rank 2: x.bin");
  EXPECT_EQ(ResultOf({.world_ranks = {1}, .error = told}), told);
}

TEST(JobFailure, OfAGroupIsTheErrorOfAllItsMembers) {
  const absl::Status error = absl::DeadlineExceededError("group 'g' is late");
  const FailureNotice failure = {
      .world_ranks = {1, 3}, .of_group = true, .error = error};
  EXPECT_EQ(ResultOf(failure), error);
  EXPECT_EQ(ErrorFor(failure, 1), error);
  EXPECT_EQ(ErrorFor(failure, 3), error);
  EXPECT_EQ(ErrorFor(failure, 0),
            absl::AbortedError("another group failed: group 'g' is late"));
}

TEST(JobFailure, OfSeveralLostRanksIsTheFirstOnes) {
  const absl::Status error = absl::NotFoundError("x.bin");
  EXPECT_EQ(ResultOf({.world_ranks = {2, 3}, .error = error}),
            absl::NotFoundError("rank 2: x.bin"));
  EXPECT_EQ(ResultOf({.error = error}), error) << "of no rank";
  EXPECT_EQ(ErrorFor({.error = error}, 0),
            absl::AbortedError("another group failed: x.bin"));
}

TEST(JobFailure, IsSmallHoweverLongTheErrorIs) {
  const absl::Status error =
      absl::InternalError("bad" + std::string(5 << 20, 'x'));
  for (const bool of_group : {false, true}) {
    const FailureNotice failure = {
        .world_ranks = {2}, .of_group = of_group, .error = error};
    for (const absl::Status& each :
         {ResultOf(failure), InducedError(failure), ErrorFor(failure, 2)}) {
      EXPECT_LT(each.message().size(), size_t{17} << 10);
      EXPECT_NE(each.message().find("bad"), std::string::npos);
      EXPECT_NE(each.message().find("5242883 bytes"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace crosshatch
