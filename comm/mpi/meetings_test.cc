// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/mpi/meetings.h"

#include <string>

#include "gtest/gtest.h"

namespace crosshatch::internal {
namespace {

void File(Meetings& meetings, int member, int64_t meeting, std::string note) {
  meetings.File(member, {.meeting = meeting}, note);
}

TEST(MeetingsTest, OneMayBeAMeetingAhead) {
  Meetings meetings(2);
  File(meetings, 0, 0, "a0");
  EXPECT_TRUE(meetings.Came(0, 0));
  EXPECT_FALSE(meetings.Came(1, 0));
  File(meetings, 1, 0, "b0");
  EXPECT_TRUE(meetings.AllCame(0));
  // Member 1 has finished meeting 0, this process has not.
  File(meetings, 1, 1, "b1");
  EXPECT_TRUE(meetings.AllCame(0));
  EXPECT_FALSE(meetings.AllCame(1));
  EXPECT_EQ(meetings.note(1, 0), "b0");
  meetings.Close(0);
  EXPECT_FALSE(meetings.AllCame(0));
  EXPECT_EQ(meetings.note(0, 0), "a0") << "still readable";
  File(meetings, 0, 1, "a1");
  EXPECT_TRUE(meetings.AllCame(1));
  meetings.Close(1);
  File(meetings, 0, 2, "a2");
  EXPECT_FALSE(meetings.AllCame(2));
  EXPECT_EQ(meetings.header(0, 2).meeting, 2);
}

TEST(MeetingsDeathTest, NobodySkipsAMeeting) {
  Meetings meetings(2);
  File(meetings, 0, 0, "");
  EXPECT_DEATH(File(meetings, 0, 4, ""), "came to meeting 4 after 0");
  EXPECT_DEATH(File(meetings, 0, 0, ""), "came to meeting 0 after 0");
}

}  // namespace
}  // namespace crosshatch::internal
