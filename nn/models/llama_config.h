// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_
#define CROSSHATCH_NN_MODELS_LLAMA_CONFIG_H_

/// \file
/// The sizes of a Llama model and of its kin.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/layers/rope_scaling.h"

namespace crosshatch::nn {

/// The families of models that are Llama but for an option or two. Which of
/// them a config is decides what its options may be, and what it and its
/// weights are called in Hugging Face's files.
enum class LlamaFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };

/// "llama", "mistral", ...: Hugging Face's model_type.
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
  /// Whether the projections to queries, keys and values have a bias (kQwen2:
  /// always; kLlama and kQwen3: if o_bias), that of the heads' outputs (kLlama,
  /// kQwen3), and those of the MLP (kLlama).
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  /// Queries and keys are normalised head by head before they are rotated
  /// (kQwen3: always).
  bool qk_norm = false;
  /// Not 0: a position sees so many keys up to its own (all but kLlama), in the
  /// blocks from first_windowed_layer on (kQwen2, kQwen3; else 0).
  int64_t sliding_window = 0;
  int64_t first_windowed_layer = 0;
  /// The output projection is the embedding's weight.
  bool tied_embeddings = false;
  /// How far positions may go; kept for config.json, no memory depends on it.
  int64_t max_positions = 2048;
  /// Of the normal distribution that matrices are filled from.
  double initializer_stddev = 0.02;
  /// Ids of the tokens that begin a text, end it (any of them) and fill up a
  /// batch, where there are such; kept for config.json.
  std::optional<int64_t> bos_token = {};
  std::vector<int64_t> eos_tokens = {};
  std::optional<int64_t> pad_token = {};

  /// The same with the zeros above replaced by what they stand for.
  LlamaConfig Resolved() const;

  /// \error kInvalidArgument naming the first value that makes no model: a size
  ///     below 1, heads that kv_heads does not divide or that do not divide dim
  ///     (transformers refuses these whatever head_dim says), an odd head_dim,
  ///     an option that the family does not have,
  ///     more than kMostLayers blocks or kMostParameters parameters.
  absl::Status Validate() const;

  /// Elements of all parameters.
  /// \pre Validate() is OK
  int64_t NumParameters() const;

  /// How far block `layer` looks back; 0: to the beginning.
  int64_t WindowOf(int64_t layer) const {
    return layer >= first_windowed_layer ? sliding_window : 0;
  }

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
