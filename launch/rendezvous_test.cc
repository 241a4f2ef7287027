// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(RendezvousEndpointTest, IsWhatTheEnvironmentSays) {
  const RendezvousEndpoint point = EndpointOf({.launcher = Launcher::kPlain,
                                               .size = 2,
                                               .host = "a",
                                               .port = 5,
                                               .job = "a:5"});
  EXPECT_EQ(ToText(point), "5\na\njob a:5");
  EXPECT_EQ(point.port, 5);
  EXPECT_EQ(EndpointOf({.host = "a", .port = 5, .token = "t"}).token, "t");
}

TEST(RendezvousEndpointTest, TheIdOfAJobKeepsItFromOthersAtTheSameAddress) {
  LaunchInfo a = {.host = "a", .port = 5, .job = "a:5", .id = "1"};
  LaunchInfo b = a;
  b.id = "2";
  EXPECT_NE(EndpointOf(a).token, EndpointOf(b).token);
  a.token = b.token = "secret";
  EXPECT_NE(EndpointOf(a).token, EndpointOf(b).token);
  EXPECT_EQ(EndpointOf(a).token, EndpointOf(a).token);
}

TEST(RendezvousEndpointTest, IsChosenUnderMpirunOnThisHostAloneIfThatDoes) {
  LaunchInfo info = {.launcher = Launcher::kOpenMpi,
                     .size = 4,
                     .local_rank = 1,
                     .local_size = 4};
  EXPECT_EQ(ToText(EndpointOf(info)), "0\n127.0.0.1\n");
  EXPECT_EQ(EndpointOf(info).port, 0);
  info.local_size = 2;
  EXPECT_NE(EndpointOf(info).host, "127.0.0.1");
  EXPECT_NE(EndpointOf(info).host, "");
}

TEST(RendezvousEndpointTest, TokensAreRandom) {
  const auto a = RandomToken();
  const auto b = RandomToken();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 32u);
  EXPECT_NE(*a, *b);
}

TEST(RendezvousEndpointTest, TravelsAsText) {
  const RendezvousEndpoint point = {.host = "a", .port = 5, .token = "t\nu"};
  const auto read = EndpointFromText(ToText(point));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToText(*read), ToText(point));
  EXPECT_FALSE(EndpointFromText("").ok());
  EXPECT_FALSE(EndpointFromText("x\na\nt").ok());
}

class RendezvousFileTest : public testing::Test {
 protected:
  const std::string directory_ = testing::TempDir() + "/meeting";
  const std::string file_ = directory_ + "/file";

  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    chmod(directory_.c_str(), 0700);
  }
};

TEST_F(RendezvousFileTest, IsReadOnceItIsThere) {
  EXPECT_EQ(
      AwaitRendezvousFile(file_, absl::Milliseconds(10)).status().message(),
      "rank 0 has not written " + file_ + " within 10ms");
  std::thread writer([this] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_TRUE(WriteRendezvousFile(file_, "5\na\nt").ok());
  });
  const auto read = AwaitRendezvousFile(file_, absl::Seconds(60));
  writer.join();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, "5\na\nt");
  struct stat file = {};
  ASSERT_EQ(stat(file_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0400u);
}

TEST_F(RendezvousFileTest, IsNotForADirectoryThatOthersWriteTo) {
  EXPECT_TRUE(CanUseRendezvousFile(file_));
  chmod(directory_.c_str(), 0770);
  EXPECT_FALSE(CanUseRendezvousFile(file_));
  EXPECT_FALSE(CanUseRendezvousFile(""));
  EXPECT_FALSE(CanUseRendezvousFile(directory_ + "/none/file"));
  EXPECT_NE(WriteRendezvousFile(directory_ + "/none/file", "").message(), "");
}

TEST(ReachableHostTest, ANameThatLeadsHereAloneBecomesAnAddress) {
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1"}, {"10.0.0.7", "10.1.0.7"}),
            "10.0.0.7");
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1", "::1"}, {"fd00::7"}), "[fd00::7]");
}

TEST(ReachableHostTest, OthersStay) {
  // Known elsewhere by an address.
  EXPECT_EQ(ChooseHost("a", {"10.0.0.7"}, {"10.1.0.7"}), "a");
  EXPECT_EQ(ChooseHost("a", {"127.0.1.1", "10.0.0.7"}, {"10.1.0.7"}), "a");
  // An unknown name stays: the rank that connects reports it.
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
