// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/base/this_machine.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::MatchesRegex;

TEST(ThisMachineTest, IsANameAndTheIdOfAStart) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string machine = ThisMachine();
  EXPECT_EQ(machine.substr(0, machine.find('\n')), name);
  EXPECT_THAT(machine.substr(machine.find('\n')),
              MatchesRegex("\n[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"));
  EXPECT_EQ(ThisMachine(), machine);
  EXPECT_LT(machine.size(), 110u);
}

}  // namespace
}  // namespace crosshatch
