// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/testing/expect.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Returns the failures of `checks`.
template <typename Checks>
std::vector<std::string> Found(Checks checks) {
  CheckScope scope;
  checks();
  std::vector<std::string> messages;
  for (const FailedCheck& failed : scope.Take()) {
    EXPECT_THAT(failed.file, EndsWith("expect_test.cc"));
    EXPECT_GT(failed.line, 0);
    messages.push_back(failed.message);
  }
  return messages;
}

TEST(Expect, PrintsNothingIfTheConditionHolds) {
  const auto found = Found([] {
    const std::vector<float> values = {1, 2};
    CH_EXPECT_EQ(values, (std::vector<float>{1, 2}));
    CH_EXPECT_EQ(values.size(), 2);
    CH_EXPECT_EQ(std::string("tp"), "tp");
    CH_EXPECT_NE(1, 2);
    CH_EXPECT_LT(1, 2);
    CH_EXPECT_LE(2, 2);
    CH_EXPECT_GT(2, 1);
    CH_EXPECT_GE(2, 2);
    CH_EXPECT_NEAR(1.0f, 1.25, 0.25);
    CH_EXPECT_TRUE(!values.empty());
    CH_EXPECT_FALSE(values.empty());
    CH_EXPECT_OK(absl::OkStatus());
    CH_EXPECT_OK(absl::StatusOr<int>(3));
    CH_EXPECT_THAT(values, ElementsAre(1, 2));
  });
  EXPECT_THAT(found, ElementsAre());
}

TEST(Expect, CollectsFailuresAndContinues) {
  const int three = 3;
  const auto found = Found([&] {
    CH_EXPECT_EQ(three, 4) << "step " << 7;
    CH_EXPECT_NE(three, 3);
    CH_EXPECT_LT(three, 3);
    CH_EXPECT_LE(three, 2);
    CH_EXPECT_GT(three, 3);
    CH_EXPECT_GE(three, 4);
    CH_EXPECT_NEAR(three, 3.5, 0.25);
    CH_EXPECT_TRUE(three == 4);
    CH_EXPECT_FALSE(three == 3);
    CH_EXPECT_OK(absl::DataLossError("gone"));
    CH_EXPECT_OK(absl::StatusOr<int>(absl::DataLossError("gone too")));
    CH_EXPECT_THAT(std::string("fsdp"), HasSubstr("tp"));
    CH_ADD_FAILURE() << "for a reason";
  });
  EXPECT_THAT(
      found,
      ElementsAre(
          "Value of: three\nExpected: is equal to 4\n  Actual: 3\nstep 7",
          HasSubstr("isn't equal to 3"), HasSubstr("is < 3"),
          HasSubstr("is <= 2"), HasSubstr("is > 3"), HasSubstr("is >= 4"),
          HasSubstr("is approximately 3.5"),
          AllOf(HasSubstr("three == 4"), HasSubstr("Expected: true")),
          AllOf(HasSubstr("three == 3"), HasSubstr("Expected: false")),
          HasSubstr("DATA_LOSS: gone"), HasSubstr("gone too"),
          HasSubstr("has substring \"tp\""), "Failed\nfor a reason"));
}

TEST(Expect, IsOneStatement) {
  const auto found = Found([] {
    if (false)
      CH_EXPECT_TRUE(false);
    else
      CH_EXPECT_TRUE(true);
    for (int i = 0; i < 2; ++i) CH_EXPECT_EQ(i, 0);
  });
  EXPECT_EQ(found.size(), 1);
}

TEST(Expect, KeepsTheFirstAndCountsTheOthers) {
  const auto found = Found([] {
    for (int i = 0; i < 100; ++i) CH_EXPECT_TRUE(false) << "the " << i;
  });
  ASSERT_EQ(found.size(), CheckScope::kMostKept + 1);
  EXPECT_THAT(found.front(), EndsWith("the 0"));
  EXPECT_THAT(found.back(), HasSubstr("80 more"));
}

TEST(Expect, ReportsToTheInnermostScope) {
  CheckScope outer;
  EXPECT_EQ(Found([] { CH_EXPECT_TRUE(false); }).size(), 1);
  std::thread([] {
    EXPECT_EQ(Found([] { CH_EXPECT_TRUE(false); }).size(), 1);
  }).join();
  EXPECT_TRUE(outer.Take().empty());
  CH_EXPECT_TRUE(false);
  EXPECT_EQ(outer.Take().size(), 1);
  EXPECT_TRUE(outer.Take().empty());
}

TEST(Expect, IsGoogleTestsOutsideOfARank) {
  EXPECT_NONFATAL_FAILURE(CH_EXPECT_EQ(1 + 1, 3) << "at last", "at last");
  CH_EXPECT_EQ(1 + 1, 2);
}

}  // namespace
}  // namespace crosshatch
