// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
#define CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_

/// \file
/// The sizes of a Llama model.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace crosshatch::nn {

struct LlamaConfig {
  int64_t dim = 256;     ///< Width of the residual stream.
  int64_t layers = 4;    ///< Number of blocks.
  int64_t heads = 8;     ///< Query heads.
  int64_t kv_heads = 0;  ///< Key and value heads; 0: as many as query heads.
  int64_t head_dim = 0;  ///< Width of a head; 0: dim / heads.
  int64_t ffn = 688;     ///< Inner width of the MLP.
  int64_t vocab = 256;   ///< Number of tokens.
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  /// The output projection is the embedding's weight.
  bool tied_embeddings = false;
  /// How far positions may go; kept for config.json, no memory depends on it.
  int64_t max_positions = 2048;
  /// Of the normal distribution that matrices are filled from.
  double initializer_stddev = 0.02;
  /// Ids of the tokens that begin a text, end it (any of them) and fill up a
  /// batch, where there are such; kept for config.json.
  std::optional<int64_t> bos_token;
  std::vector<int64_t> eos_tokens;
  std::optional<int64_t> pad_token;

  /// The same with the zeros above replaced by what they stand for.
  LlamaConfig Resolved() const;

  /// \error kInvalidArgument naming the first value that makes no model: a size
  ///     below 1, heads that kv_heads does not divide or that do not divide dim
  ///     (transformers refuses these whatever head_dim says), an odd head_dim,
  ///     more than kMostLayers blocks or kMostParameters parameters.
  absl::Status Validate() const;

  /// Elements of all parameters.
  /// \pre Validate() is OK
  int64_t NumParameters() const;

  /// Each block is a module on every rank, so a number of them that is a slip
  /// would take all memory before anything could refuse it.
  static constexpr int64_t kMostLayers = 10'000;
  /// So that no number of bytes of a model, its gradients and the optimizer's
  /// state overflows.
  static constexpr int64_t kMostParameters = int64_t{1} << 50;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
