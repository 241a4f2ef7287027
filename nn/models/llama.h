// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_MODELS_LLAMA_H_
#define CROSSHATCH_NN_MODELS_LLAMA_H_

/// \file
/// The Llama family: pre-norm blocks of grouped-query attention with rotary
/// positions and a SwiGLU MLP. With the options of LlamaConfig it is also
/// Mistral, Qwen2, Qwen3 and Phi-3 (whose projections are merged in files, and
/// here are not).
///
/// Modules have Hugging Face's names without the leading "model.", so that
/// weights and plans need no table of names:
///
///     embed_tokens
///     layers.N.input_layernorm
///     layers.N.self_attn.{q,k,v,o}_proj
///     layers.N.self_attn.{q,k}_norm (of Qwen3)
///     layers.N.post_attention_layernorm
///     layers.N.mlp.{gate,up,down}_proj
///     norm
///     lm_head
///
/// Shapes: B rows of the batch (0 is fine), T positions, D = dim,
/// H = head_dim, V = vocab.
///
/// Rows may consist of packed documents, which do not attend to each other.
/// Then each module takes the documents' keys i32 [B, T, 2] and positions i32
/// [B, T] (tensor/ops/attention.h) as further inputs, as plain tensors.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "crosshatch/nn/layers/containers.h"
#include "crosshatch/nn/layers/embedding.h"
#include "crosshatch/nn/layers/linear.h"
#include "crosshatch/nn/layers/norm.h"
#include "crosshatch/nn/layers/rope.h"
#include "crosshatch/nn/models/kv_cache.h"
#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tensor/device.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch::nn {

/// Causal grouped-query attention: [B, T, D] (, keys, positions) to [B, T, D].
///
/// The number of heads is that of the projections' outputs, which is right also
/// if tensor parallelism passes each rank its own heads as plain tensors
/// (tp::LlamaPlan).
class LlamaAttention final : public Module {
 public:
  /// \param rotary outlives the module.
  /// \param window the number of keys that a position attends to; 0: all before
  /// it.
  LlamaAttention(const LlamaConfig& config, RotaryTable& rotary,
                 int64_t window);

  /// Does what Llama::set_cache does; this attention uses entry `index`.
  void set_cache(KvCache* cache, size_t index) {
    cache_ = cache;
    index_ = index;
  }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  const int64_t head_dim_;
  RotaryTable& rotary_;
  KvCache* cache_ = nullptr;
  size_t index_ = 0;
  Linear& q_proj_;
  Linear& k_proj_;
  Linear& v_proj_;
  Linear& o_proj_;
  RmsNorm* q_norm_ = nullptr;  ///< Null if there is none, as k_norm_.
  RmsNorm* k_norm_ = nullptr;
  const int64_t window_;
};

/// down(silu(gate(x)) * up(x)): [B, T, D] to [B, T, D].
class LlamaMlp final : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  Linear& gate_proj_;
  Linear& up_proj_;
  Linear& down_proj_;
};

/// Attention and MLP, each around the residual stream: [B, T, D] (, keys,
/// positions) to [B, T, D].
class LlamaBlock final : public Module {
 public:
  /// \param layer the block's index.
  LlamaBlock(const LlamaConfig& config, RotaryTable& rotary, int64_t layer);

  LlamaAttention& attention() { return self_attn_; }

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  RmsNorm& input_layernorm_;
  LlamaAttention& self_attn_;
  RmsNorm& post_attention_layernorm_;
  LlamaMlp& mlp_;
};

/// Tokens [B, T] (i32, i64 or u16) to logits [B, T, V]. For packed documents
/// Call({tokens, keys, positions}): attention stays within a document, and
/// rotary angles are those of the positions. If rotary frequencies depend on
/// the length, it is that of the row. Not with a cache (checked).
class Llama final : public Module {
 public:
  /// Creates names and shapes on Device::Meta(), for Materialize. On the rank's
  /// own device it is materialized at once, with seed 0.
  /// \checks config.Validate()
  explicit Llama(const LlamaConfig& config, Device device = Device::Meta());

  /// Returns the resolved config.
  const LlamaConfig& config() const { return config_; }
  /// Returns the blocks, for `for (Module& block : model.blocks())`.
  ModuleRange<LlamaBlock> blocks() const {
    return ModuleRange<LlamaBlock>(blocks_);
  }

  /// Sets a cache. The tokens of a forward then follow those in `cache` and are
  /// appended, in NoGrad and for one batch during the cache's lifetime
  /// (checked). If rotary frequencies depend on the length, it has at most
  /// rope_scaling.original_positions positions (checked). Null removes it. The
  /// cache outlives its use.
  void set_cache(KvCache* cache);

 protected:
  TensorList ForwardImpl(TensorSpan inputs) override;

 private:
  std::vector<LlamaBlock*> MakeBlocks();

  const LlamaConfig config_;
  KvCache* cache_ = nullptr;
  RotaryTable rotary_;
  Embedding& embed_tokens_;
  std::vector<LlamaBlock*> blocks_;
  RmsNorm& norm_;
  Linear& lm_head_;
};

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_MODELS_LLAMA_H_
