// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/run_identity.h"

#include <functional>
#include <string>
#include <vector>

#include "crosshatch/checkpoint/hf_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace crosshatch::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunIdentity Sample() {
  nn::LlamaConfig config;
  config.family = nn::LlamaFamily::kMistral;
  config.heads = 6;
  config.dim = 24;
  return {.model = checkpoint::FormatConfig(config),
          .dtype = "float32",
          .plan = "a plan",
          .eos = 7,
          .tokens = 315,
          .hash = -7,
          .rows = 5,
          .row_size = 13};
}

std::string Refusal(const RunIdentity& before, const RunIdentity& now,
                    const std::vector<std::string>& may_change = {}) {
  return std::string(before.ChangesTo(now, may_change).status().message());
}

TEST(RunIdentityTest, NamesChangedFieldsOnly) {
  const RunIdentity before = Sample();
  EXPECT_THAT(*before.ChangesTo(before, {}), IsEmpty());
  const struct {
    std::function<void(RunIdentity&)> change;
    const char* says;
    const char* allowed_by;
  } kChanges[] = {
      {[](RunIdentity& r) { r.dtype = "bfloat16"; },
       "--dtype was float32 and is bfloat16", "dtype"},
      {[](RunIdentity& r) { r.tokens = 320, r.hash = 8; },
       "the number of tokens was 315 and is 320", "data"},
      {[](RunIdentity& r) { r.hash = 8; },
       "the tokens differ (their number is the same)", "data"},
      {[](RunIdentity& r) { r.plan = "b"; }, "--plan was different", ""},
      {[](RunIdentity& r) { r.eos = RunIdentity::kNoEos; },
       "--eos was 7 and is not given", ""},
      {[](RunIdentity& r) { r.rows = 6; },
       "a step was 5 rows of 13 tokens and is 6 rows of 13 tokens", ""},
      {[](RunIdentity& r) { r.row_size = 14; },
       "a step was 5 rows of 13 tokens and is 5 rows of 14 tokens", ""},
  };
  for (const auto& [change, says, allowed_by] : kChanges) {
    RunIdentity now = before;
    change(now);
    EXPECT_THAT(*before.ChangesTo(now, {allowed_by}), ElementsAre(says));
    if (*allowed_by == 0) continue;
    EXPECT_EQ(Refusal(before, now, {"something else"}),
              std::string(says) +
                  "; restore the former values, or allow the change with "
                  "--may_change=" +
                  allowed_by);
  }
  RunIdentity now = before;
  now.plan = "";  // A mesh without tp.
  EXPECT_THAT(*before.ChangesTo(now, {}), IsEmpty());
  // Both changes are listed.
  now.dtype = "bfloat16";
  now.hash = 8;
  EXPECT_EQ(Refusal(before, now),
            "--dtype was float32 and is bfloat16, the tokens differ (their "
            "number is the same); restore the former values, or allow the "
            "change with --may_change=data,dtype");
}

TEST(RunIdentityTest, NamesEachFieldOfTheModelThatDiffers) {
  const RunIdentity before = Sample();
  const auto refusal = [&](const std::function<void(nn::LlamaConfig&)>& to) {
    nn::LlamaConfig config =
        *checkpoint::ParseConfig(before.model, "config.json");
    to(config);
    RunIdentity now = before;
    now.model = checkpoint::FormatConfig(config);
    return Refusal(before, now, {"model", "data", "dtype"});
  };
  const std::string end = "; restore the former values";
  // Shapes stay the same.
  EXPECT_EQ(refusal([](nn::LlamaConfig& c) {
              c.heads = c.kv_heads = 2;
              c.head_dim = 12;
            }),
            "head_dim was 4 and is 12, num_attention_heads was 6 and is 2 "
            "(--heads=6), num_key_value_heads was 6 and is 2 (--kv_heads=6)" +
                end);
  EXPECT_EQ(refusal([](nn::LlamaConfig& c) { c.rope_theta = 20; }),
            "rope_theta was 10000.0 and is 20.0" + end);
  EXPECT_EQ(refusal([](nn::LlamaConfig& c) { c.rms_norm_eps = 1e-6; }),
            "rms_norm_eps was 1e-05 and is 1e-06" + end);
  EXPECT_EQ(refusal([](nn::LlamaConfig& c) { c.sliding_window = 8; }),
            "sliding_window was null and is 8" + end);
  EXPECT_EQ(
      refusal([](nn::LlamaConfig& c) {
        c.rope_scaling = {.kind = nn::RopeScaling::Kind::kLinear, .factor = 2};
      }),
      "rope_scaling was null and is not set, rope_scaling/factor was not set "
      "and is 2.0, rope_scaling/rope_type was not set and is \"linear\"" +
          end);
}

// A checkpoint of an older version.
TEST(RunIdentityTest, UnknownFieldsAreNotCompared) {
  const RunIdentity before = {.eos = RunIdentity::kUnknown, .tokens = 315};
  EXPECT_THAT(*before.ChangesTo(Sample(), {}), IsEmpty());
}

}  // namespace
}  // namespace crosshatch::examples
