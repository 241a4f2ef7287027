// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/name_pattern.h"

#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

TEST(NamePatternTest, MatchesPartByPart) {
  EXPECT_TRUE(MatchesName("layers.*.w[qkv]", "layers.12.wk"));
  EXPECT_FALSE(MatchesName("layers.*.w[qkv]", "layers.12.wo"));
  EXPECT_FALSE(MatchesName("layers.*", "layers.0.wq"));
  EXPECT_FALSE(MatchesName("layers.*.wq", "layers.wq"));
  EXPECT_TRUE(MatchesName("", ""));
  EXPECT_FALSE(MatchesName("", "layers"));
}

TEST(NamePatternTest, TwoStarsAreAnyNumberOfParts) {
  EXPECT_TRUE(MatchesName("**.bias", "bias"));
  EXPECT_TRUE(MatchesName("**.bias", "layers.0.up.bias"));
  EXPECT_FALSE(MatchesName("**.bias", "layers.0.up.weight"));
  EXPECT_TRUE(MatchesName("layers.**.*norm.weight", "layers.3.a.norm.weight"));
  EXPECT_FALSE(MatchesName("layers.**.*norm.weight", "norm.weight"));
  EXPECT_TRUE(MatchesName("**", "a.b.c"));
}

}  // namespace
}  // namespace crosshatch::nn
