// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama_config.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "crosshatch/nn/layers/rope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::nn {
namespace {

using ::testing::HasSubstr;

TEST(LlamaConfigTest, FillsInHeads) {
  LlamaConfig config;
  config.dim = 96;
  config.heads = 6;
  EXPECT_TRUE(config.Validate().ok());
  EXPECT_EQ(config.Resolved().kv_heads, 6);
  EXPECT_EQ(config.Resolved().head_dim, 16);
  config.kv_heads = 2;
  config.head_dim = 10;
  EXPECT_EQ(config.Resolved(), config);
}

TEST(LlamaConfigTest, CountsParameters) {
  LlamaConfig config;
  config.dim = 6;
  config.layers = 5;
  config.heads = 3;
  config.head_dim = 4;
  config.kv_heads = 1;
  config.ffn = 7;
  config.vocab = 11;
  // Queries and outputs of 12, keys and values of 4, three matrices of the MLP,
  // two norms.
  const int64_t block = 2 * 12 * 6 + 2 * 4 * 6 + 3 * 7 * 6 + 2 * 6;
  EXPECT_EQ(config.NumParameters(), 2 * 11 * 6 + 5 * block + 6);
  config.tied_embeddings = true;
  EXPECT_EQ(config.NumParameters(), 11 * 6 + 5 * block + 6);
}

TEST(LlamaConfigTest, RefusesOptionsThatTheFamilyDoesNotHave) {
  const auto error = [](const LlamaConfig& config) {
    const absl::Status status = config.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using Kind = RopeScaling::Kind;
  EXPECT_THAT(error({.qk_norm = true}),
              HasSubstr("qk_norm is true, but a model of the family llama has "
                        "none"));
  EXPECT_THAT(error({.family = LlamaFamily::kQwen2}),
              HasSubstr("qkv_bias is false, but a model of the family qwen2"));
  EXPECT_THAT(error({.qkv_bias = true}), HasSubstr("together with o_bias"));
  EXPECT_THAT(error({.sliding_window = 4}), HasSubstr("sliding_window is 4"));
  EXPECT_THAT(error({.family = LlamaFamily::kMistral,
                     .sliding_window = 4,
                     .first_windowed_layer = 1}),
              HasSubstr("first_windowed_layer is 1"));
  EXPECT_THAT(error({.family = LlamaFamily::kMistral, .sliding_window = -4}),
              HasSubstr("must not be negative"));
  EXPECT_THAT(error({.rope_scaling = {.kind = Kind::kDynamic,
                                      .factor = 2,
                                      .original_positions = 512}}),
              HasSubstr("begins at max_positions, 2048, not at 512"));
  EXPECT_THAT(error({.rope_scaling = {.attention_factor = 0.5}}),
              HasSubstr("attention_factor is of yarn and longrope alone"));
  EXPECT_THAT(error({.family = LlamaFamily::kPhi3,
                     .rope_scaling = {.kind = Kind::kLinear, .factor = 2}}),
              HasSubstr("not scaled, or by longrope"));
}

TEST(LlamaConfigTest, RejectsSizesThatOverflow) {
  int refused = 0;
  constexpr int64_t kLarge = int64_t{1} << 32;
  for (int which = 0; which < 1 << 6; ++which) {
    for (const int64_t large : {kLarge, kLarge << 8, kLarge << 30}) {
      LlamaConfig config;
      int64_t* const sizes[] = {&config.dim,   &config.layers,
                                &config.heads, &config.head_dim,
                                &config.ffn,   &config.vocab};
      config.head_dim = 8;
      for (int i = 0; i < 6; ++i) {
        if (which >> i & 1) *sizes[i] = large;
      }
      const absl::Status status = config.Validate();
      if (status.ok()) {
        const int64_t count = config.NumParameters();
        EXPECT_GT(count, 0) << which;
        EXPECT_LE(count, LlamaConfig::kMostParameters) << which;
      } else {
        ++refused;
      }
    }
  }
  // 2^32 heads of 2^32 would overflow to 0.
  LlamaConfig config;
  config.dim = config.heads = config.head_dim = kLarge;
  EXPECT_FALSE(config.Validate().ok());
  EXPECT_GT(refused, 150);
  EXPECT_LT(refused, 192);
}

TEST(LlamaConfigTest, NamesInvalidFields) {
  const auto message = [](auto change) {
    LlamaConfig config;
    change(config);
    return std::string(config.Validate().message());
  };
  EXPECT_THAT(message([](LlamaConfig& c) { c.layers = 0; }),
              HasSubstr("layers must be at least 1, not 0"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.heads = 0; }),
              HasSubstr("heads must be at least 1"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.vocab = -3; }),
              HasSubstr("vocab must be at least 1, not -3"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.kv_heads = 3; }),
              HasSubstr("kv_heads must divide heads: 8 heads, 3 kv_heads"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.heads = 7; }),
              HasSubstr("heads must divide dim"));
  // transformers refuses them even if head_dim is given.
  EXPECT_THAT(message([](LlamaConfig& c) {
                c.heads = 7;
                c.head_dim = 8;
              }),
              HasSubstr("heads must divide dim: dim 256, 7 heads"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.heads = 512; }),
              HasSubstr("heads must divide dim"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.head_dim = -2; }),
              HasSubstr("head_dim must be 1 to"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.layers = 10'001; }),
              HasSubstr("layers must be at most 10000"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.head_dim = 9; }),
              HasSubstr("head_dim must be even"));
  EXPECT_THAT(message([](LlamaConfig& c) { c.rope_theta = 0; }),
              HasSubstr("rope_theta"));
  EXPECT_THAT(message([](LlamaConfig& c) {
                c.rms_norm_eps = std::numeric_limits<double>::quiet_NaN();
              }),
              HasSubstr("rms_norm_eps"));
}

}  // namespace
}  // namespace crosshatch::nn
