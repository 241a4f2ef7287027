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
  EXPECT_THAT(refusal({0, 2}), HasSubstr("group 'tp' (ranks 0, 2) was asked "
                                         "for by rank 1, which is no member"));
  EXPECT_THAT(refusal({1, 4}), HasSubstr("names rank 4 in a world of 4"));
  EXPECT_THAT(refusal({-1, 1}), HasSubstr("names rank -1"));
  EXPECT_THAT(refusal({1, 2, 1}), HasSubstr("has rank 1 twice"));
  EXPECT_THAT(refusal({}), HasSubstr("no member"));
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
