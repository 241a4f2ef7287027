// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/reachable_host.h"

#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(ReachableHostTest, ANameOfLoopbackBecomesAnAddress) {
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1"}, {"10.0.0.7", "10.1.0.7"}),
            "10.0.0.7");
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1", "::1"}, {"fd00::7"}), "[fd00::7]");
}

TEST(ReachableHostTest, OtherHostsStay) {
  // Known elsewhere by an address.
  EXPECT_EQ(ChooseHost("a", {"10.0.0.7"}, {"10.1.0.7"}), "a");
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1", "10.0.0.7"}, {"10.1.0.7"}), "a");
  // Unknown: the connection reports that.
  EXPECT_EQ(ChooseHost("a", {}, {"10.1.0.7"}), "a");
  // Without a network.
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1"}, {}), "a");
  // Meant for one host.
  EXPECT_EQ(ChooseHost("localhost", {"127.0.0.1"}, {"10.1.0.7"}), "localhost");
  EXPECT_EQ(ChooseHost("127.0.0.1", {"127.0.0.1"}, {"10.1.0.7"}), "127.0.0.1");
}

TEST(ReachableHostTest, OfTheSystem) {
  EXPECT_EQ(ReachableHost("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(ReachableHost("localhost"), "localhost");
  EXPECT_EQ(ReachableHost("[::1]"), "[::1]");
  EXPECT_EQ(ReachableHost("no.such.host.invalid"), "no.such.host.invalid");
  EXPECT_EQ(ReachableHost("192.0.2.77"), "192.0.2.77");
}

}  // namespace
}  // namespace crosshatch
