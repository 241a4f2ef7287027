// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/dtensor/layout/placement.h"

#include "absl/hash/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlacementTest, PrintsAndParses) {
  const std::vector<std::pair<Placement, std::string>> forms = {
      {Replicate(), "R"},
      {Shard(0), "S(0)"},
      {Shard(-1), "S(-1)"},
      {StridedShard(0, 2), "_S(0,2)"},
      {Partial(), "P(sum)"},
      {Partial(ReduceOp::kAvg), "P(avg)"},
      {Partial(ReduceOp::kProduct), "P(product)"},
      {Partial(ReduceOp::kMin), "P(min)"},
      {Partial(ReduceOp::kMax), "P(max)"},
  };
  for (const auto& [placement, text] : forms) {
    EXPECT_EQ(placement.ToString(), text);
    EXPECT_EQ(*Placement::Parse(text), placement);
  }
  EXPECT_EQ(*Placement::Parse("P"), Partial());
}

TEST(PlacementTest, ParseRefusesOtherText) {
  for (const char* text : {"", "r", "S", "S()", "S(x)", "S(0", "S(0,2)",
                           "_S(0)", "_S(0,0)", "_S(0,1,2)", "P(xor)", "P()"}) {
    const absl::Status status = Placement::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("\"" + std::string(text) + "\""));
  }
}

TEST(PlacementTest, ListsPrintAndParse) {
  const std::vector<Placement> list = {StridedShard(0, 2), Shard(0),
                                       Replicate()};
  EXPECT_EQ(ToString(list), "[_S(0,2),S(0),R]");
  EXPECT_THAT(*ParsePlacements("[_S(0,2),S(0),R]"),
              ElementsAre(list[0], list[1], list[2]));
  EXPECT_THAT(*ParsePlacements(" [S(1), P(max)] "),
              ElementsAre(Shard(1), Partial(ReduceOp::kMax)));
  EXPECT_THAT(*ParsePlacements("[]"), ElementsAre());
  EXPECT_FALSE(ParsePlacements("S(0),R").ok());
  EXPECT_FALSE(ParsePlacements("[S(0),]").ok());
  EXPECT_FALSE(ParsePlacements("[,R]").ok());
}

TEST(PlacementTest, EqualityIsByValue) {
  EXPECT_EQ(Shard(1), Shard(1));
  EXPECT_NE(Shard(1), Shard(0));
  EXPECT_NE(Shard(0), StridedShard(0, 2));
  EXPECT_NE(Partial(), Partial(ReduceOp::kMax));
  EXPECT_NE(Partial(), Replicate());
  EXPECT_EQ(absl::HashOf(Shard(1)), absl::HashOf(Shard(1)));
}

}  // namespace
}  // namespace crosshatch
