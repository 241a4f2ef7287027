// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/base/check_failure_handler.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(CheckTest, EvaluatesItsArgumentsOnceAndTheMessageNever) {
  int conditions = 0, messages = 0;
  CH_CHECK(++conditions == 1) << ++messages;
  CH_CHECK_EQ(++conditions, 2) << ++messages;
  EXPECT_EQ(conditions, 2);
  EXPECT_EQ(messages, 0);
  CH_CHECK_OK(absl::OkStatus());
}

TEST(CheckTest, IsOneStatement) {
  // An `else` after it belongs to the `if` before it.
  for (bool condition : {true, false}) {
    bool reached_else = false;
    if (condition)
      CH_CHECK(condition);
    else
      reached_else = true;
    EXPECT_EQ(reached_else, !condition);
  }
}

TEST(CheckDeathTest, NamesThePlaceTheExpressionAndTheValues) {
  EXPECT_DEATH(CH_CHECK(1 > 2) << "one is small",
               "check_test.cc:[0-9]+: check failed: 1 > 2 one is small");
  const int ranks = 3;
  EXPECT_DEATH(CH_CHECK_EQ(ranks, 4) << "ranks", "\\(3 vs 4\\) ranks");
  EXPECT_DEATH(CH_CHECK_OK(absl::InternalError("lost")), "INTERNAL: lost");
}

TEST(CheckDeathTest, IsPassedToTheHandlerAndPrintedOnlyIfThatDoesNot) {
  const auto fail = [](bool is_printed) {
    const CheckFailureHandler handler([is_printed](const std::string& text) {
      std::fprintf(stderr, "handled: <%s>\n", text.c_str());
      return is_printed;
    });
    CH_CHECK(1 > 2) << "alas";
  };
  const std::string said =
      "[^\n]*check_test.cc:[0-9]+: check failed: 1 > 2 alas";
  // GoogleTest prints the program's output before the message.
  EXPECT_DEATH(fail(true), "handled: <" + said + ">\n$");
  EXPECT_DEATH(fail(false), "handled: <" + said + ">\n" + said + "\n$");
  {
    const CheckFailureHandler gone([](const std::string&) { return true; });
  }
  EXPECT_DEATH(CH_CHECK(1 > 2) << "alas", "check failed: 1 > 2 alas");
}

}  // namespace
}  // namespace crosshatch
