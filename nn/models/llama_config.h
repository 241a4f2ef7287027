// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
#define CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_

/// \file
/// The sizes and options of a Llama-like model.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/layers/rope.h"

namespace crosshatch::nn {

/// Model families that differ from Llama in a few options. The family
/// determines which options a config may have, and the names of config and
/// weights in Hugging Face's files.
enum class LlamaFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };

/// Returns Hugging Face's model_type: "llama", "mistral", ...
const char* Name(LlamaFamily family);

struct LlamaConfig {
  LlamaFamily family = LlamaFamily::kLlama;
  int64_t dim = 256;     ///< Width of the residual stream.
  int64_t layers = 4;    ///< Number of blocks.
  int64_t heads = 8;     ///< Query heads.
  int64_t kv_heads = 0;  ///< Key and value heads; 0: as many as query heads.
  int64_t head_dim = 0;  ///< Width of a head; 0: dim / heads.
  int64_t ffn = 688;     ///< Inner width of the MLP.
  int64_t vocab = 256;   ///< Number of tokens.
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};  ///< kPhi3: kNone or kLongRope.
  double rms_norm_eps = 1e-5;
  /// Whether there are biases of the projections to queries, keys and values
  /// (kQwen2: always; kLlama and kQwen3: if o_bias), of the output projection
  /// (kLlama, kQwen3), and of the MLP (kLlama).
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  /// Queries and keys are normalised head by head before they are rotated
  /// (kQwen3: always).
  bool qk_norm = false;
  /// If not 0, the number of keys up to its own that a position attends to (all
  /// but kLlama), in the blocks from first_windowed_layer on (kQwen2, kQwen3;
  /// else 0).
  int64_t sliding_window = 0;
  int64_t first_windowed_layer = 0;
  /// The output projection is the embedding's weight.
  bool tied_embeddings = false;
  /// The maximum position, for config.json. No memory depends on it.
  int64_t max_positions = 2048;
  /// The standard deviation of initial matrices.
  double initializer_stddev = 0.02;
  /// Ids of tokens that begin a text, end it (any of them) and pad a batch, for
  /// config.json.
  std::optional<int64_t> bos_token = {};
  std::vector<int64_t> eos_tokens = {};
  std::optional<int64_t> pad_token = {};

  /// Returns the config with defaults instead of the zeros above.
  LlamaConfig Resolved() const;

  /// \error kInvalidArgument naming the first invalid value: a size below 1,
  ///     heads that kv_heads does not divide or that do not divide dim (which
  ///     transformers refuses even if head_dim is given), an odd head_dim, an
  ///     option that the family lacks, more than kMostLayers blocks or
  ///     kMostParameters parameters.
  absl::Status Validate() const;

  /// Returns the number of elements of all parameters.
  /// \pre Validate() is OK
  int64_t NumParameters() const;

  /// Returns the window of block `layer`; 0 for none.
  int64_t WindowOf(int64_t layer) const {
    return layer >= first_windowed_layer ? sliding_window : 0;
  }

  /// Bounds the modules of a mistyped config, which would exhaust memory before
  /// any check.
  static constexpr int64_t kMostLayers = 10'000;
  /// Bounds parameters so that the bytes of a model, its gradients and the
  /// optimizer's state do not overflow.
  static constexpr int64_t kMostParameters = int64_t{1} << 50;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
