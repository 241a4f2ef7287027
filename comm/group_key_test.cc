// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/group_key.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::HasSubstr;

TEST(MemberIndex, IsThePlaceInTheList) {
  const GroupKey key{"tp", {6, 2, 4}, "tp"};
  EXPECT_EQ(*MemberIndex(key, 6, 8), 0);
  EXPECT_EQ(*MemberIndex(key, 4, 8), 2);
}

TEST(MemberIndex, RefusesWhatIsNoGroup) {
  const auto refusal = [](std::vector<int> ranks) {
    const auto index = MemberIndex({"tp", std::move(ranks), "tp"}, 1, 4);
    EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(index.status().message());
  };
  EXPECT_THAT(refusal({0, 2}),
              HasSubstr("group 'tp' (ranks 0, 2) was requested "
                        "by rank 1, which is no member"));
  EXPECT_THAT(refusal({1, 4}), HasSubstr("names rank 4 in a world of 4"));
  EXPECT_THAT(refusal({-1, 1}), HasSubstr("names rank -1"));
  EXPECT_THAT(refusal({1, 2, 1}), HasSubstr("has rank 1 twice"));
  EXPECT_THAT(refusal({}), HasSubstr("no member"));
}

TEST(DescribeRanks, BoundsWhatItNames) {
  EXPECT_EQ(DescribeRanks({3}), "rank 3");
  EXPECT_EQ(DescribeRanks({0, 2}), "ranks 0, 2");
  std::vector<int> ranks;
  for (int r = 1; r < 3000; ++r) ranks.push_back(r);
  EXPECT_EQ(DescribeRanks(ranks), "ranks 1-2999");
  ranks.clear();
  for (int r = 0; r < 3000; r += 3) ranks.push_back(r);
  EXPECT_EQ(DescribeRanks(ranks),
            "ranks 0, 3, 6, 9, 12, 15, 18, 21 and 992 more");
}

TEST(GroupKey, DiffersByEachField) {
  const GroupKey key{"tp", {0, 1}, "tp"};
  EXPECT_EQ(key, (GroupKey{"tp", {0, 1}, "tp"}));
  EXPECT_NE(key, (GroupKey{"fsdp", {0, 1}, "tp"}));
  EXPECT_NE(key, (GroupKey{"tp", {1, 0}, "tp"}));
  EXPECT_NE(key, (GroupKey{"tp", {0, 1}, "fsdp"}));
}

}  // namespace
}  // namespace crosshatch
