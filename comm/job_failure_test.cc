// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/job_failure.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(JobFailure, OfARankIsTheRanksErrorAndNewsToTheOthers) {
  const JobFailure failure = FailureOfRank(2, absl::NotFoundError("x.bin"));
  EXPECT_EQ(failure.result, absl::NotFoundError("rank 2: x.bin"));
  EXPECT_EQ(failure.For(2), absl::NotFoundError("x.bin"));
  EXPECT_EQ(failure.For(0), absl::AbortedError("rank 2 failed: x.bin"));
}

TEST(JobFailure, WhatRanksToldOneAnotherNamesTheRankThatItHappenedOn) {
  const absl::Status told = absl::NotFoundError("on rank 2: x.bin");
  EXPECT_EQ(FailureOfRank(1, told).result, told);
  EXPECT_EQ(FailureOf({.world_ranks = {1}, .error = told}).result, told);
}

TEST(JobFailure, OfAGroupIsTheErrorOfAllItsMembers) {
  const JobFailure failure =
      FailureOfGroup({1, 3}, absl::DeadlineExceededError("group 'g' is late"));
  EXPECT_EQ(failure.result, absl::DeadlineExceededError("group 'g' is late"));
  EXPECT_EQ(failure.For(1), failure.result);
  EXPECT_EQ(failure.For(3), failure.result);
  EXPECT_EQ(failure.For(0),
            absl::AbortedError("another group failed: group 'g' is late"));
}

TEST(JobFailure, OfANoticeIsWhatItTellsOf) {
  const absl::Status error = absl::NotFoundError("x.bin");
  EXPECT_EQ(FailureOf({.world_ranks = {2, 3}, .error = error}).result,
            absl::NotFoundError("rank 2: x.bin"));
  EXPECT_EQ(FailureOf({.world_ranks = {2, 3}, .of_group = true, .error = error})
                .For(3),
            error);
  EXPECT_EQ(FailureOf({.error = error}).result, error) << "of no rank";
}

TEST(JobFailure, IsSmallHoweverLongTheErrorIs) {
  const absl::Status error =
      absl::InternalError("bad" + std::string(5 << 20, 'x'));
  for (const JobFailure& failure :
       {FailureOfRank(2, error), FailureOfGroup({1, 2}, error)}) {
    for (const absl::Status* each :
         {&failure.result, &failure.own, &failure.induced}) {
      EXPECT_LT(each->message().size(), size_t{17} << 10);
      EXPECT_NE(each->message().find("bad"), std::string::npos);
      EXPECT_NE(each->message().find("5242883 bytes"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace crosshatch
