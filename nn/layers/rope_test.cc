// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/layers/rope.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/tensor/rank_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;
using Kind = RopeScaling::Kind;

constexpr int64_t kHeadDim = 12;
constexpr double kTheta = 10000.0;

struct Case {
  std::string name;
  RopeScaling scaling;
  int64_t length;
  std::vector<float> frequencies;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class RotaryFrequenciesTest : public ::testing::TestWithParam<Case> {};

// Values of transformers 5.23 (ROPE_INIT_FUNCTIONS). Its pow and ours each have
// an error of one or two float32 roundings; a ramp adds as many.
TEST_P(RotaryFrequenciesTest, AreThoseOfTransformers) {
  const Case& c = GetParam();
  ASSERT_TRUE(c.scaling.Validate(kHeadDim, kTheta).ok());
  const std::vector<float> got =
      RotaryFrequencies(kHeadDim, kTheta, c.scaling, c.length);
  ASSERT_EQ(got.size(), c.frequencies.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], c.frequencies[i], 8 * 0x1p-24 * c.frequencies[i]) << i;
  }
}

const std::vector<double> kShort = {1, 1.5, 2, 2.5, 3, 3.5};
const std::vector<double> kLong = {2, 3, 4, 5, 6, 7};

INSTANTIATE_TEST_SUITE_P(
    Kinds, RotaryFrequenciesTest,
    ::testing::Values(
        Case{"linear",
             {.kind = Kind::kLinear, .factor = 4},
             100,
             {0.25, 0.0538608618, 0.011603971, 0.00249999994, 0.000538608583,
              0.000116039737}},
        Case{"dynamic_short",
             {.kind = Kind::kDynamic, .factor = 4, .original_positions = 64},
             64,
             {1, 0.215443447, 0.046415884, 0.00999999978, 0.00215443433,
              0.000464158948}},
        Case{"dynamic_long",
             {.kind = Kind::kDynamic, .factor = 4, .original_positions = 64},
             100,
             {1, 0.170198858, 0.0289676506, 0.00493026199, 0.000839124783,
              0.000142818157}},
        Case{"llama3",
             {.kind = Kind::kLlama3, .factor = 8, .original_positions = 32},
             100,
             {1, 0.0330410488, 0.00580198551, 0.00124999997, 0.000269304292,
              5.80198684e-05}},
        Case{"yarn",
             {.kind = Kind::kYarn, .factor = 4, .original_positions = 64},
             100,
             {1, 0.134652153, 0.011603971, 0.00249999994, 0.000538608583,
              0.000116039737}},
        Case{"yarn_untruncated",
             {.kind = Kind::kYarn,
              .factor = 4,
              .original_positions = 64,
              .beta_fast = 8,
              .beta_slow = 2,
              .truncate = false},
             100,
             {1, 0.0646776259, 0.011603971, 0.00249999994, 0.000538608583,
              0.000116039737}},
        Case{"longrope_short",
             {.kind = Kind::kLongRope,
              .original_positions = 64,
              .short_factor = kShort,
              .long_factor = kLong},
             64,
             {1, 0.14362897, 0.023207942, 0.00400000019, 0.000718144758,
              0.000132616842}},
        Case{"longrope_long",
             {.kind = Kind::kLongRope,
              .original_positions = 64,
              .short_factor = kShort,
              .long_factor = kLong},
             65,
             {0.5, 0.0718144849, 0.011603971, 0.00200000009, 0.000359072379,
              6.63084211e-05}}),
    [](const auto& info) { return info.param.name; });

TEST(RopeScalingTest, RejectsInvalidFrequencies) {
  const auto error = [](const RopeScaling& scaling, double theta = kTheta) {
    const absl::Status status = scaling.Validate(kHeadDim, theta);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({.kind = Kind::kLinear, .factor = 0.5}),
              HasSubstr("factor must be at least 1, not 0.5"));
  EXPECT_THAT(error({.kind = Kind::kLinear,
                     .factor = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("factor must be at least 1, not nan"));
  EXPECT_THAT(error({.kind = Kind::kDynamic, .factor = 2}),
              HasSubstr("original_positions must be at least 1, not 0"));
  EXPECT_THAT(error({.kind = Kind::kLlama3,
                     .original_positions = 8,
                     .low_freq_factor = 4}),
              HasSubstr("high_freq_factor must be more than low_freq_factor"));
  EXPECT_THAT(
      error({.kind = Kind::kYarn, .original_positions = 8, .beta_slow = 40}),
      HasSubstr("beta_fast must be more than beta_slow, not 32"));
  EXPECT_THAT(error({.kind = Kind::kYarn, .original_positions = 8}, 1.0),
              HasSubstr("theta must be more than 1"));
  EXPECT_THAT(error({.kind = Kind::kLongRope,
                     .original_positions = 8,
                     .short_factor = kShort}),
              HasSubstr("long_factor must have head_dim / 2 = 6 numbers"));
  EXPECT_THAT(error({.kind = Kind::kLongRope,
                     .original_positions = 8,
                     .attention_factor = 0,
                     .short_factor = kShort,
                     .long_factor = kLong}),
              HasSubstr("attention_factor must be positive"));
}

// A float32 angle is off by a few roundings of a number as large as the
// position.
TEST(RotaryTableTest, HoldsCosinesAndSinesOfAngles) {
  constexpr int64_t kLength = 40;
  constexpr int64_t kHeadDim = 12;
  RotaryTable table(kHeadDim, 10000.0);
  const std::vector<float> cos = table.Cos(kLength).ToVector<float>();
  const std::vector<float> sin = table.Sin(kLength).ToVector<float>();
  ASSERT_EQ(table.Cos(kLength).sizes(), (Shape{kLength, kHeadDim / 2}));
  for (int64_t t = 0; t < kLength; ++t) {
    for (int64_t i = 0; i < kHeadDim / 2; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(10000.0, -2.0 * i / kHeadDim);
      const double bound = 4 * 0x1p-24 * (1 + angle);
      EXPECT_NEAR(cos[t * kHeadDim / 2 + i], std::cos(angle), bound);
      EXPECT_NEAR(sin[t * kHeadDim / 2 + i], std::sin(angle), bound);
    }
  }
}

TEST(RotaryTableTest, IsKeptForALength) {
  RotaryTable table(8, 500000.0);
  const Tensor first = table.Cos(5);
  EXPECT_TRUE(table.Cos(5).SameAs(first));
  EXPECT_EQ(table.Cos(7).size(0), 7);
  EXPECT_EQ(table.Sin(7).size(0), 7);
  EXPECT_EQ(table.Cos(0).numel(), 0);
}

TEST(RotaryTableTest, HoldsNothingInADryRun) {
  RankContext context({.dry_run = true});
  const RankContextScope scope(&context);
  constexpr int64_t kLength = int64_t{1} << 40;
  RotaryTable table(128, 10000.0);
  EXPECT_EQ(table.Cos(kLength).sizes(), (Shape{kLength, 64}));
  EXPECT_EQ(table.Sin(kLength).sizes(), (Shape{kLength, 64}));
}

}  // namespace
}  // namespace crosshatch::nn
