// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/launch/meeting_point.h"

#include <string>

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

TEST(SpeakerTest, OneSpeaksOfEachHostThatMayBeLeft) {
  EXPECT_TRUE(SpeaksWithoutRank0(1, -1));
  EXPECT_FALSE(SpeaksWithoutRank0(2, -1));
  EXPECT_TRUE(SpeaksWithoutRank0(1, 8));
  EXPECT_TRUE(SpeaksWithoutRank0(8, 8));
  EXPECT_FALSE(SpeaksWithoutRank0(9, 8));
}

TEST(SpeakerTest, OneOfEachHostSpeaksWhereNobodyCame) {
  EXPECT_TRUE(SpeaksOfNobody(1, 1));
  EXPECT_TRUE(SpeaksOfNobody(4, 0));
  EXPECT_FALSE(SpeaksOfNobody(5, 1));
  EXPECT_TRUE(SpeaksOfNobody(5, -1));
}

}  // namespace
}  // namespace crosshatch
