// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama_config.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace crosshatch::nn {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kMostSize = int64_t{1} << 40;

/// Elements of all parameters of a resolved config whose sizes are at most
/// kMostSize, or any number above the most that are allowed.
Wide CountParameters(const LlamaConfig& c) {
  // Wide holds a product of three sizes, and no more.
  const Wide queries = Wide{c.heads} * c.head_dim;
  const Wide keys = Wide{c.kv_heads} * c.head_dim;
  if (queries > LlamaConfig::kMostParameters) return queries;
  const Wide block =
      c.dim * (2 * queries + 2 * keys) + 3 * Wide{c.dim} * c.ffn + 2 * c.dim;
  if (block > LlamaConfig::kMostParameters) return block;
  const Wide matrices = c.tied_embeddings ? 1 : 2;
  return matrices * c.vocab * c.dim + c.layers * block + c.dim;
}

}  // namespace

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
  // Where it is not given, that heads divide dim makes it 1 or more.
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
