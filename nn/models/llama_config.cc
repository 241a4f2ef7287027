// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama_config.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace crosshatch::nn {

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
      {"dim", c.dim},           {"layers", c.layers},
      {"heads", c.heads},       {"kv_heads", c.kv_heads},
      {"head_dim", c.head_dim}, {"ffn", c.ffn},
      {"vocab", c.vocab},       {"max_positions", c.max_positions},
  };
  for (const auto& size : sizes) {
    if (size.value < 1 || size.value > int64_t{1} << 40) {
      return absl::InvalidArgumentError(
          absl::StrCat(size.name, " must be at least 1, not ", size.value));
    }
  }
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_heads must divide heads: ", c.heads, " heads, ",
                     c.kv_heads, " kv_heads"));
  }
  if (head_dim == 0 && c.dim % c.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads must divide dim where head_dim is not given: dim ",
                     c.dim, ", ", c.heads, " heads"));
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
  return absl::OkStatus();
}

}  // namespace crosshatch::nn
