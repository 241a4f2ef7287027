// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/meeting_point.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "crosshatch/launch/meeting_file.h"
#include "crosshatch/launch/speaker.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

TEST(MeetingPointTest, IsWhatTheEnvironmentSays) {
  const MeetingPoint point = MeetingPointOf({.launcher = Launcher::kPlain,
                                             .size = 2,
                                             .host = "a",
                                             .port = 5,
                                             .job = "a:5"});
  EXPECT_EQ(ToText(point), "5\na\njob a:5");
  EXPECT_FALSE(IsToBeChosen(point));
  EXPECT_EQ(MeetingPointOf({.host = "a", .port = 5, .token = "t"}).token, "t");
}

TEST(MeetingPointTest, TheIdOfAJobKeepsItFromOthersAtTheSameAddress) {
  LaunchInfo a = {.host = "a", .port = 5, .job = "a:5", .id = "1"};
  LaunchInfo b = a;
  b.id = "2";
  EXPECT_NE(MeetingPointOf(a).token, MeetingPointOf(b).token);
  a.token = b.token = "secret";
  EXPECT_NE(MeetingPointOf(a).token, MeetingPointOf(b).token);
  EXPECT_EQ(MeetingPointOf(a).token, MeetingPointOf(a).token);
}

TEST(MeetingPointTest, IsChosenUnderMpirunOnThisHostAloneIfThatDoes) {
  LaunchInfo info = {.launcher = Launcher::kOpenMpi,
                     .size = 4,
                     .local_rank = 1,
                     .local_size = 4};
  EXPECT_EQ(ToText(MeetingPointOf(info)), "0\n127.0.0.1\n");
  EXPECT_TRUE(IsToBeChosen(MeetingPointOf(info)));
  info.local_size = 2;
  EXPECT_NE(MeetingPointOf(info).host, "127.0.0.1");
  EXPECT_NE(MeetingPointOf(info).host, "");
}

TEST(MeetingPointTest, TokensAreRandom) {
  const auto a = RandomToken();
  const auto b = RandomToken();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 32u);
  EXPECT_NE(*a, *b);
}

TEST(MeetingPointTest, TravelsAsText) {
  const MeetingPoint point = {.host = "a", .port = 5, .token = "t\nu"};
  const auto read = MeetingPointFromText(ToText(point));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ToText(*read), ToText(point));
  EXPECT_FALSE(MeetingPointFromText("").ok());
  EXPECT_FALSE(MeetingPointFromText("x\na\nt").ok());
}

TEST(SpeakerTest, TheFirstOfAHostSpeaksWhereProcessesCannotReachOneAnother) {
  const std::string topic = absl::StrCat("a test, process ", getpid());
  EXPECT_FALSE(IsSpokenOf(topic));
  EXPECT_TRUE(SpeaksFirst(topic));
  EXPECT_TRUE(IsSpokenOf(topic));
  EXPECT_FALSE(SpeaksFirst(topic));
  EXPECT_FALSE(IsSpokenOf(topic + " of another"));
  EXPECT_TRUE(SpeaksFirst(topic + " of another"));
}

/// A name that another user has silences nobody.
TEST(SpeakerTest, AnotherUserSilencesNobody) {
  const std::string topic = absl::StrCat("two users, process ", getpid());
  constexpr uid_t kNobody = 65534;
  if (seteuid(kNobody) != 0) {
    std::puts(
        "NOT CHECKED: this user cannot act as another, so whether "
        "another silences it is not");
    return;
  }
  const bool other_speaks = SpeaksFirst(topic);
  ASSERT_EQ(seteuid(getuid()), 0);
  EXPECT_TRUE(other_speaks);
  EXPECT_FALSE(IsSpokenOf(topic));
  EXPECT_TRUE(SpeaksFirst(topic));
  EXPECT_TRUE(IsSpokenOf(topic));
  EXPECT_FALSE(SpeaksFirst(topic));
}

class MeetingFileTest : public testing::Test {
 protected:
  const std::string directory_ = testing::TempDir() + "/meeting";
  const std::string file_ = directory_ + "/file";

  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    chmod(directory_.c_str(), 0700);
  }
};

TEST_F(MeetingFileTest, IsReadOnceItIsThere) {
  EXPECT_EQ(AwaitMeetingFile(file_, absl::Milliseconds(10)).status().message(),
            "rank 0 has not written " + file_ + " within 10ms");
  std::thread writer([this] {
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_TRUE(WriteMeetingFile(file_, "5\na\nt").ok());
  });
  const auto read = AwaitMeetingFile(file_, absl::Seconds(60));
  writer.join();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, "5\na\nt");
  struct stat file = {};
  ASSERT_EQ(stat(file_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0400u);
}

TEST_F(MeetingFileTest, IsNotForADirectoryThatOthersWriteTo) {
  EXPECT_TRUE(CanMeetByFile(file_));
  chmod(directory_.c_str(), 0770);
  EXPECT_FALSE(CanMeetByFile(file_));
  EXPECT_FALSE(CanMeetByFile(""));
  EXPECT_FALSE(CanMeetByFile(directory_ + "/none/file"));
  EXPECT_NE(WriteMeetingFile(directory_ + "/none/file", "").message(), "");
}

}  // namespace
}  // namespace crosshatch
