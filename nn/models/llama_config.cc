// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama_config.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"

namespace crosshatch::nn {
namespace {

/// The options that a family allows.
struct FamilyRule {
  const char* name;
  /// -1: per config, 0: never, 1: always.
  int qkv_bias, o_bias, mlp_bias, qk_norm;
  /// Whether biases of queries, keys and values require that of the outputs.
  bool one_attention_bias;
  bool may_window;
  /// Whether the first blocks may have no window.
  bool may_window_late;
  bool only_long_rope;
};

const FamilyRule& RuleOf(LlamaFamily family) {
  static constexpr FamilyRule kRules[] = {
      {"llama", -1, -1, -1, 0, true, false, false, false},
      {"mistral", 0, 0, 0, 0, false, true, false, false},
      {"qwen2", 1, 0, 0, 0, false, true, true, false},
      {"qwen3", -1, -1, 0, 1, true, true, true, false},
      {"phi3", 0, 0, 0, 0, false, true, false, true},
  };
  return kRules[static_cast<size_t>(family)];
}

/// Checks the options against those of the family.
absl::Status CheckFamily(const LlamaConfig& c) {
  const FamilyRule& rule = RuleOf(c.family);
  const struct {
    const char* name;
    bool value;
    int allowed;
  } options[] = {
      {"qkv_bias", c.qkv_bias, rule.qkv_bias},
      {"o_bias", c.o_bias, rule.o_bias},
      {"mlp_bias", c.mlp_bias, rule.mlp_bias},
      {"qk_norm", c.qk_norm, rule.qk_norm},
  };
  const auto refuse = [&](const char* option, const std::string& value,
                          const std::string& wants) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is ", value, ", but a model of the family ",
                     rule.name, " has ", wants));
  };
  for (const auto& option : options) {
    if (option.allowed >= 0 && option.value != (option.allowed == 1)) {
      return refuse(option.name, option.value ? "true" : "false",
                    option.allowed == 1 ? "it" : "none");
    }
  }
  if (rule.one_attention_bias && c.qkv_bias != c.o_bias) {
    return refuse("qkv_bias", c.qkv_bias ? "true" : "false",
                  "it together with o_bias");
  }
  if (c.sliding_window < 0 || c.first_windowed_layer < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sliding_window and first_windowed_layer must not be negative: ",
        c.sliding_window, " and ", c.first_windowed_layer));
  }
  if (!rule.may_window && c.sliding_window != 0) {
    return refuse("sliding_window", absl::StrCat(c.sliding_window), "none");
  }
  if (c.first_windowed_layer != 0 &&
      (!rule.may_window_late || c.sliding_window == 0)) {
    return refuse("first_windowed_layer", absl::StrCat(c.first_windowed_layer),
                  rule.may_window_late ? "it together with sliding_window"
                                       : "a window in all blocks or in none");
  }
  if (rule.only_long_rope && c.rope_scaling.kind != RopeScaling::Kind::kNone &&
      c.rope_scaling.kind != RopeScaling::Kind::kLongRope) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a model of the family ", rule.name,
        " has rotary positions that are not scaled, or by longrope"));
  }
  // Refuses options that a model's files cannot store.
  const RopeScaling& rope = c.rope_scaling;
  if (rope.kind == RopeScaling::Kind::kDynamic &&
      rope.original_positions != c.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dynamic rope scaling begins at max_positions, ", c.max_positions,
        ", not at ", rope.original_positions, " (original_positions)"));
  }
  if (rope.kind != RopeScaling::Kind::kYarn &&
      rope.kind != RopeScaling::Kind::kLongRope && rope.attention_factor != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope scaling: attention_factor is of yarn and longrope alone, and ",
        rope.attention_factor, " here"));
  }
  return rope.Validate(c.head_dim, c.rope_theta);
}

__extension__ using Wide = __int128;

constexpr int64_t kMostSize = int64_t{1} << 40;

/// Returns the elements of all parameters. Any number above the limit stands
/// for overflow. The config is resolved and its sizes are at most kMostSize.
Wide CountParameters(const LlamaConfig& c) {
  // Wide holds a product of three sizes, and no more.
  const Wide queries = Wide{c.heads} * c.head_dim;
  const Wide keys = Wide{c.kv_heads} * c.head_dim;
  if (queries > LlamaConfig::kMostParameters) return queries;
  Wide block =
      c.dim * (2 * queries + 2 * keys) + 3 * Wide{c.dim} * c.ffn + 2 * c.dim;
  if (c.qkv_bias) block += queries + 2 * keys;
  if (c.o_bias) block += c.dim;
  if (c.mlp_bias) block += 2 * Wide{c.ffn} + c.dim;
  if (c.qk_norm) block += 2 * c.head_dim;
  if (block > LlamaConfig::kMostParameters) return block;
  const Wide matrices = c.tied_embeddings ? 1 : 2;
  return matrices * c.vocab * c.dim + c.layers * block + c.dim;
}

}  // namespace

const char* Name(LlamaFamily family) { return RuleOf(family).name; }

LlamaConfig LlamaConfig::Resolved() const {
  LlamaConfig config = *this;
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_dim == 0 && config.heads > 0) {
    config.head_dim = config.dim / config.heads;
  }
  return config;
}

absl::Status LlamaConfig::Validate() const {
  const LlamaConfig c = Resolved();
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {
      {"dim", c.dim},
      {"layers", c.layers},
      {"heads", c.heads},
      {"kv_heads", c.kv_heads},
      {"ffn", c.ffn},
      {"vocab", c.vocab},
      {"max_positions", c.max_positions},
  };
  for (const auto& size : sizes) {
    if (size.value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(size.name, " must be at least 1, not ", size.value));
    }
    if (size.value > kMostSize) {
      return absl::InvalidArgumentError(absl::StrCat(
          size.name, " must be at most ", kMostSize, ", not ", size.value));
    }
  }
  if (c.layers > kMostLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layers must be at most ", kMostLayers, ", not ", c.layers));
  }
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_heads must divide heads: ", c.heads, " heads, ",
                     c.kv_heads, " kv_heads"));
  }
  if (c.dim % c.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "heads must divide dim: dim ", c.dim, ", ", c.heads, " heads"));
  }
  // A default head_dim is at least 1, because heads divide dim.
  if (c.head_dim < 1 || c.head_dim > kMostSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim must be 1 to ", kMostSize, ", not ", c.head_dim));
  }
  if (c.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim must be even for rotary embeddings, not ", c.head_dim));
  }
  if (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_theta must be positive, not ", c.rope_theta));
  }
  if (!(c.rms_norm_eps >= 0) || !std::isfinite(c.rms_norm_eps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm_eps must not be negative: ", c.rms_norm_eps));
  }
  if (!(c.initializer_stddev >= 0) || !std::isfinite(c.initializer_stddev)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "initializer_stddev must not be negative: ", c.initializer_stddev));
  }
  CH_RETURN_IF_ERROR(CheckFamily(c));
  if (CountParameters(c) > kMostParameters) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a model of these sizes has more than ", kMostParameters,
        " parameters: dim ", c.dim, ", ", c.layers, " layers, ", c.heads,
        " heads of ", c.head_dim, ", ffn ", c.ffn, ", vocab ", c.vocab));
  }
  return absl::OkStatus();
}

int64_t LlamaConfig::NumParameters() const {
  return static_cast<int64_t>(CountParameters(Resolved()));
}

}  // namespace crosshatch::nn
