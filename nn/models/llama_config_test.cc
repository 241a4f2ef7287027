// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama_config.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
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

TEST(LlamaConfigTest, NamesWhatMakesNoModel) {
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
