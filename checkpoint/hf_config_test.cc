// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/checkpoint/hf_config.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/checkpoint/file_io.h"
#include "crosshatch/nn/layers/rope.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace crosshatch::checkpoint {
namespace {

using ::testing::HasSubstr;

/// Returns a valid config with the additional fields `more`.
std::string Config(const std::string& more) {
  return R"({"hidden_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "intermediate_size": 176,
             "vocab_size": 256)" +
         (more.empty() ? "" : ", " + more) + "}";
}

TEST(HfConfigTest, ReadsTheFormOfTransformers5) {
  const auto config = LoadConfig("tests/conformance/llama/gqa");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->dim, 64);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->ffn, 176);
  EXPECT_EQ(config->vocab, 256);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->max_positions, 256);

  const auto tied = LoadConfig("tests/conformance/llama/tied");
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_TRUE(tied->tied_embeddings);
}

TEST(HfConfigTest, ReadsEveryFormOfTheRotaryBase) {
  const struct {
    const char* more;
    double theta;
  } cases[] = {
      {"", 10000},
      {R"("rope_theta": 5e5)", 500000},
      {R"("rope_theta": 500000, "rope_scaling": null)", 500000},
      {R"("rope_theta": 7, "rope_scaling": {"type": "default"})", 7},
      {R"("rope_parameters": {"rope_theta": 12, "rope_type": "default"})", 12},
      {R"("rope_parameters": {"rope_theta": 12})", 12},
      {R"("rope_theta": 3, "rope_parameters": {"rope_type": "default"})", 3},
  };
  for (const auto& c : cases) {
    const auto config = ParseConfig(Config(c.more), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope_theta, c.theta) << c.more;
  }
}

TEST(HfConfigTest, FillsInDefaults) {
  const auto config = ParseConfig(Config(""), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->max_positions, 2048);
  EXPECT_FALSE(config->tied_embeddings);
}

TEST(HfConfigTest, NamesTheFileAndTheField) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "not JSON"},
      {"[1]", "not a JSON object"},
      {Config("").substr(0, 40), "not JSON"},
      {Config(R"("x": )" + std::string(200'000, '[') +
              std::string(200'000, ']')),
       "nested deeper than 64"},
      {Config(R"("num_key_value_heads": )" + std::string(40, '[') +
              std::string(40, ']')),
       "num_key_value_heads is [["},
      {Config(R"("hidden_size": 32)"), "names \"hidden_size\" twice"},
      {Config(R"("num_key_value_heads": 0)"),
       "num_key_value_heads is 0, but it must be at least 1"},
      {Config(R"("head_dim": 0)"), "head_dim is 0"},
      {Config(R"("head_dim": 18446744073709551615)"), "a size is expected"},
      {Config(R"("head_dim": 1099511627776)"), "more than"},
      {Config(R"("rope_theta": 1e308, "rms_norm_eps": -1)"), "rms_norm_eps"},
      {Config(R"("bos_token_id": "<s>")"), "bos_token_id is \"<s>\""},
      {Config(R"("pad_token_id": 1.5)"), "pad_token_id is 1.5"},
      {Config(R"("eos_token_id": [1, "2"])"), "eos_token_id is [1,\"2\"]"},
      {Config(R"("eos_token_id": 18446744073709551615)"), "eos_token_id is"},
      {R"({"hidden_size": 64})", "num_hidden_layers is missing"},
      {Config(R"("num_key_value_heads": "x")"), "num_key_value_heads is \"x\""},
      {Config(R"("num_key_value_heads": 3)"), "kv_heads must divide heads"},
      {Config(R"("head_dim": 15)"), "head_dim must be even"},
      {Config(R"("head_dim": -2)"), "head_dim is -2"},
      {Config(R"("max_position_embeddings": 1.5)"),
       "max_position_embeddings is 1.5"},
      {Config(R"("rms_norm_eps": null, "rope_theta": "1")"),
       "rope_theta is \"1\""},
      {Config(R"("rope_theta": 0)"), "rope_theta must be positive"},
      {Config(R"("tie_word_embeddings": 1)"), "tie_word_embeddings is 1"},
      {Config(R"("model_type": "gemma")"),
       "model_type is \"gemma\", but the supported families are llama, "
       "mistral, qwen2, qwen3, phi3"},
      {Config(R"("hidden_act": "gelu")"), "only \"silu\" is supported"},
      {Config(R"("attention_bias": 1)"), "attention_bias is 1"},
      {Config(R"("mlp_bias": "no")"), "mlp_bias is \"no\""},
      {Config(R"("attention_dropout": 0.1)"), "attention_dropout is 0.1"},
      {Config(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})"),
       "rope_scaling.low_freq_factor is missing"},
      {Config(R"("rope_scaling": {"type": "ntk", "factor": 8.0})"),
       "rope_scaling.type is \"ntk\", but default, linear"},
      {Config(R"("rope_scaling": {"type": "linear"})"),
       "rope_scaling.factor is missing"},
      {Config(R"("rope_scaling": {"type": "linear", "factor": 0.5})"),
       "factor must be at least 1"},
      {Config(R"("rope_scaling": {"type": "linear", "factor": 2, "beta": 1})"),
       "rope_scaling.beta is 1, but rotary positions of type linear"},
      {Config(R"("rope_scaling": {"type": "longrope", "short_factor": [1],
                                  "long_factor": ["2"]})"),
       "rope_scaling.long_factor is [\"2\"]"},
      {Config(R"("rope_scaling": {"type": "longrope", "short_factor": [1],
                                  "long_factor": [2]})"),
       "short_factor must have head_dim / 2"},
      {Config(R"("rope_scaling": {"factor": 8.0})"),
       "rope_scaling.factor is 8.0, but rotary positions of type default"},
      {Config(R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor is"},
      {Config(R"("model_type": "qwen2", "num_key_value_heads": 2,
                 "use_sliding_window": true, "max_window_layers": -1)"),
       "max_window_layers is -1"},
      {Config(R"("model_type": "qwen3", "num_key_value_heads": 2,
                 "use_sliding_window": true,
                 "layer_types": ["sliding_attention", "full_attention"])"),
       "layer_types is [\"sliding_attention\""},
      {Config(R"("model_type": "phi3",
                 "rope_scaling": {"type": "linear", "factor": 2.0})"),
       "scaled, or by longrope"},
      {Config(R"("rope_parameters": [])"), "rope_parameters is []"},
      {Config(R"("is_causal": false)"), "only true is supported"},
      {Config(R"("layer_types": ["full_attention", "sliding_attention"])"),
       "layer_types is [\"full_attention\",\"sliding_attention\"], but all "
       "blocks of this family must be equal"},
      {Config(R"("layer_types": ["full_attention"])"), "layer_types is"},
      {Config(R"("model_type": "mistral", "num_key_value_heads": 2,
                 "layer_types": ["full_attention", "full_attention"])"),
       "layer_types is"},
      {Config(R"("model_type": "qwen2", "num_key_value_heads": 2,
                 "layer_types": ["full_attention", "sliding_attention"])"),
       "layer_types is"},
      {Config(R"("rope_parameters": {"rope_type": "linear", "factor": 2},
                 "rope_scaling": {"rope_type": "linear", "factor": 4})"),
       "rope_scaling is {\"factor\":4,\"rope_type\":\"linear\"}, but "
       "rope_parameters holds other values"},
      {Config(R"("rope_parameters": {"rope_type": "default"},
                 "rope_scaling": {"rope_type": "linear", "factor": 4})"),
       "rope_parameters holds other values"},
      {Config(R"("rope_theta": 20, "rope_parameters": {"rope_theta": 12})"),
       "rope_parameters.rope_theta is 12.0, but the config's own rope_theta is "
       "20"},
      {Config(R"("sliding_window": 8)"), "this field is unknown"},
      {Config(R"("logit_scale": 0.0625)"), "logit_scale is 0.0625"},
      {Config(R"("residual_multiplier": 0.2)"), "residual_multiplier is"},
      {Config(R"("final_logit_softcapping": 30.0)"), "final_logit_softcapping"},
      {Config(R"("quantization_config": {"bits": 4})"), "quantization_config"},
      {Config(R"("attention_chunk_size": 8)"), "attention_chunk_size is 8"},
      {Config(R"("per_layer_config": {"1": {}})"), "per_layer_config is"},
      {Config(R"("model_type": "mistral", "num_key_value_heads": 2,
                 "attention_bias": true)"),
       "attention_bias is true, but this field is unknown for this family"},
  };
  for (const auto& c : cases) {
    const absl::Status status =
        ParseConfig(c.text, "some/config.json").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("some/config.json"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  EXPECT_TRUE(absl::IsNotFound(LoadConfig("no/such/dir").status()));
}

// transformers 5 raises an error for these.
TEST(HfConfigTest, RefusesHeadsThatDoNotDivideTheWidth) {
  const std::string text =
      R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
          "head_dim": 10, "intermediate_size": 176, "vocab_size": 256})";
  const absl::Status status = ParseConfig(text, "config.json").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("config.json: heads must divide dim: dim 64, 6 heads"));
}

TEST(HfConfigTest, KeepsTheTokensThatBeginEndAndFill) {
  using Ids = std::vector<int64_t>;
  const struct {
    const char* more;
    std::optional<int64_t> bos;
    Ids eos;
    std::optional<int64_t> pad;
    const char* formatted;
  } cases[] = {
      // The defaults of transformers.
      {"", 1, {2}, std::nullopt, R"("eos_token_id": 2,)"},
      {R"("bos_token_id": 128000, "eos_token_id": [128001, 128009],
          "pad_token_id": 128004)",
       128000,
       {128001, 128009},
       128004,
       R"("pad_token_id": 128004,)"},
      {R"("bos_token_id": null, "eos_token_id": null, "pad_token_id": -1)",
       std::nullopt,
       {},
       -1,
       R"("eos_token_id": null,)"},
  };
  for (const auto& c : cases) {
    const auto config = ParseConfig(Config(c.more), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->bos_token, c.bos);
    EXPECT_EQ(config->eos_tokens, c.eos);
    EXPECT_EQ(config->pad_token, c.pad);
    EXPECT_THAT(FormatConfig(*config), HasSubstr(c.formatted));
    const auto again = ParseConfig(FormatConfig(*config), "config.json");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *config);
  }
}

// Missing fields have the family's defaults in transformers.
TEST(HfConfigTest, FillsInByFamily) {
  const struct {
    const char* fields;
    int64_t kv_heads, head_dim, window, first_windowed, max_positions;
    bool qkv_bias, qk_norm;
  } cases[] = {
      {R"("model_type": "mistral", "num_attention_heads": 16)", 8, 4, 4096, 0,
       131072, false, false},
      {R"("model_type": "mistral", "num_key_value_heads": null,
          "num_attention_heads": 4, "sliding_window": null)",
       4, 16, 0, 0, 131072, false, false},
      {R"("model_type": "qwen2", "num_attention_heads": 32)", 32, 2, 0, 0,
       32768, true, false},
      {R"("model_type": "qwen2", "num_attention_heads": 32,
          "use_sliding_window": true, "max_window_layers": 1)",
       32, 2, 4096, 1, 32768, true, false},
      {R"("model_type": "qwen3", "num_attention_heads": 32,
          "use_sliding_window": true, "sliding_window": 7)",
       32, 128, 0, 0, 32768, false, true},
      {R"("model_type": "phi3", "num_attention_heads": 4)", 4, 16, 0, 0, 4096,
       false, false},
  };
  for (const auto& c : cases) {
    const auto config =
        ParseConfig(absl::StrCat(R"({"hidden_size": 64, "num_hidden_layers": 2,
                         "intermediate_size": 8, "vocab_size": 8, )",
                                 c.fields, "}"),
                    "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->kv_heads, c.kv_heads) << c.fields;
    EXPECT_EQ(config->head_dim, c.head_dim) << c.fields;
    EXPECT_EQ(config->sliding_window, c.window) << c.fields;
    EXPECT_EQ(config->first_windowed_layer, c.first_windowed) << c.fields;
    EXPECT_EQ(config->max_positions, c.max_positions) << c.fields;
    EXPECT_EQ(config->qkv_bias, c.qkv_bias) << c.fields;
    EXPECT_EQ(config->qk_norm, c.qk_norm) << c.fields;
    const auto again = ParseConfig(FormatConfig(*config), "again");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *config) << c.fields;
  }
}

// The form before transformers 5, and fields that follow from others.
TEST(HfConfigTest, ReadsScaledRotaryPositions) {
  const auto scaling = [](const std::string& fields) {
    const auto config = ParseConfig(Config(fields), "config.json");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->rope_scaling : nn::RopeScaling{};
  };
  using Kind = nn::RopeScaling::Kind;
  EXPECT_EQ(scaling(R"("rope_scaling": {"type": "linear", "factor": 2.0})"),
            (nn::RopeScaling{.kind = Kind::kLinear, .factor = 2}));
  EXPECT_EQ(
      scaling(R"("max_position_embeddings": 512,
                 "rope_scaling": {"type": "dynamic", "factor": 2.0})"),
      (nn::RopeScaling{
          .kind = Kind::kDynamic, .factor = 2, .original_positions = 512}));
  // The factor is the ratio of the lengths; the attention factor follows from
  // it.
  const nn::RopeScaling yarn = scaling(R"("max_position_embeddings": 512,
                 "rope_scaling": {"rope_type": "yarn",
                                  "original_max_position_embeddings": 128})");
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_DOUBLE_EQ(yarn.attention_factor, 0.1 * std::log(4.0) + 1);
}

TEST(HfConfigTest, WritesThreeFieldsForPhi3) {
  const auto config =
      ParseConfig(Config(R"("model_type": "phi3", "max_position_embeddings": 64,
                "original_max_position_embeddings": 8, "head_dim": 4,
                "rope_scaling": {"type": "su", "short_factor": [1, 1.5],
                                 "long_factor": [2, 3]})"),
                  "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_DOUBLE_EQ(config->rope_scaling.attention_factor, std::sqrt(2.0));
  const auto json = nlohmann::json::parse(FormatConfig(*config));
  EXPECT_EQ(json["rope_scaling"],
            (nlohmann::json{{"type", "longrope"},
                            {"short_factor", {1.0, 1.5}},
                            {"long_factor", {2.0, 3.0}}}));
}

TEST(HfConfigTest, ReadsTheFilesOfModels) {
  for (const char* name : {"llama3", "mistral", "phi3", "qwen2", "qwen3"}) {
    const std::string path =
        absl::StrCat("checkpoint/testdata/configs/", name, ".json");
    const auto text = ReadFile(path);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto read = ParseConfigFile(*text, path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_THAT(read->ignored, ::testing::IsEmpty());
    const auto again = ParseConfigFile(FormatConfig(read->config), "again");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->config, read->config);
    EXPECT_THAT(again->ignored, ::testing::IsEmpty());
  }
}

TEST(HfConfigTest, NamesTheFieldsThatItIgnores) {
  const auto read = ParseConfigFile(
      Config(R"("trained_by": "us", "run": 7, "use_cache": false,
                                "logit_scale": null, "beta": {})"),
      "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->ignored,
              ::testing::UnorderedElementsAre("trained_by", "run"));
}

// A field that a user edits in a written config must be the one that is read.
TEST(HfConfigTest, WritesRotaryPositionsOnce) {
  const auto config = ParseConfig(
      Config(R"("rope_parameters": {"rope_type": "linear", "factor": 2.0})"),
      "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  auto json = nlohmann::json::parse(FormatConfig(*config));
  EXPECT_FALSE(json.contains("rope_parameters"));
  json["rope_scaling"]["factor"] = 3.0;
  EXPECT_EQ(ParseConfig(json.dump(), "edited")->rope_scaling.factor, 3);
  json["rope_theta"] = 77.0;
  EXPECT_EQ(ParseConfig(json.dump(), "edited")->rope_theta, 77);
}

// A checkpoint stores the text to distinguish models. Changes each option
// alone, in each family that has it. A new option is a compile error here.
TEST(HfConfigTest, TheTextStatesEachOption) {
  nn::LlamaConfig c;
  [[maybe_unused]] const auto& [family, dim, layers, heads, kv_heads, head_dim,
                                ffn, vocab, rope_theta, rope_scaling,
                                rms_norm_eps, qkv_bias, o_bias, mlp_bias,
                                qk_norm, window, first_windowed, tied,
                                max_positions, stddev, bos, eos, pad] = c;
  using Change = std::function<void(nn::LlamaConfig&)>;
  const std::vector<Change> changes = {
      [](auto& c) { c.dim = 128; },
      [](auto& c) { c.layers = 3; },
      [](auto& c) { c.heads = 8; },
      [](auto& c) { c.kv_heads = 1; },
      [](auto& c) { c.head_dim = 6; },
      [](auto& c) { c.ffn = 7; },
      [](auto& c) { c.vocab = 9; },
      [](auto& c) { c.rope_theta = 11; },
      [](auto& c) {
        c.rope_scaling = {.kind = nn::RopeScaling::Kind::kLinear, .factor = 2};
      },
      [](auto& c) { c.rms_norm_eps = 1e-3; },
      [](auto& c) { c.qkv_bias = c.o_bias = true; },
      [](auto& c) { c.mlp_bias = true; },
      [](auto& c) { c.sliding_window = 4; },
      [](auto& c) { c.sliding_window = 4, c.first_windowed_layer = 1; },
      [](auto& c) { c.tied_embeddings = true; },
      [](auto& c) { c.max_positions = 10; },
      [](auto& c) { c.initializer_stddev = 0.5; },
      [](auto& c) { c.bos_token = 3; },
      [](auto& c) {
        c.eos_tokens = {3, 4};
      },
      [](auto& c) { c.pad_token = 3; },
  };
  std::vector<int> families_of(changes.size(), 0);
  std::set<std::string> texts;
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "phi3"}) {
    const auto base = ParseConfig(
        Config(absl::StrCat(R"("num_key_value_heads": 4, "head_dim": 16,
                                "sliding_window": null, "model_type": ")",
                            name, "\"")),
        "config.json");
    ASSERT_TRUE(base.ok()) << base.status();
    EXPECT_TRUE(texts.insert(FormatConfig(*base)).second) << name;
    for (size_t i = 0; i < changes.size(); ++i) {
      nn::LlamaConfig changed = *base;
      changes[i](changed);
      if (!changed.Validate().ok()) continue;
      ++families_of[i];
      EXPECT_TRUE(texts.insert(FormatConfig(changed)).second)
          << name << ", change " << i;
    }
  }
  EXPECT_THAT(families_of, ::testing::Each(::testing::Ge(1)));
}

TEST(HfConfigTest, ReadsItsOwnText) {
  nn::LlamaConfig config;
  config.dim = 48;
  config.layers = 3;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 10;
  config.ffn = 130;
  config.vocab = 257;
  config.rope_theta = 123456.5;
  config.rms_norm_eps = 3e-6;
  config.tied_embeddings = true;
  config.max_positions = 99;
  config.initializer_stddev = 0.015;
  const auto again = ParseConfig(FormatConfig(config), "config.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, config);
}

}  // namespace
}  // namespace crosshatch::checkpoint
