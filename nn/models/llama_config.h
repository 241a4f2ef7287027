// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
#define CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_

/// \file
/// The sizes of a Llama model.

#include <cstdint>

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

  /// The same with the zeros above replaced by what they stand for.
  LlamaConfig Resolved() const;

  /// \error kInvalidArgument naming the first value that makes no model: a size
  ///     below 1, heads that kv_heads does not divide, an odd head_dim.
  absl::Status Validate() const;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
