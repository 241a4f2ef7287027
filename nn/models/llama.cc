// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/nn/models/llama.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tensor/ops/attention.h"
#include "crosshatch/tensor/ops/embedding.h"
#include "crosshatch/tensor/ops/pointwise.h"
#include "crosshatch/tensor/ops/view.h"
#include "crosshatch/tensor/rank_context.h"

namespace crosshatch::nn {
namespace {

LinearOptions Projection(const LlamaConfig& config, int64_t in, int64_t out,
                         bool bias) {
  return {
      .in = in, .out = out, .bias = bias, .stddev = config.initializer_stddev};
}

LinearOptions QueryProjection(const LlamaConfig& c) {
  return Projection(c, c.dim, c.heads * c.head_dim, c.qkv_bias);
}

LinearOptions KeyProjection(const LlamaConfig& c) {
  return Projection(c, c.dim, c.kv_heads * c.head_dim, c.qkv_bias);
}

/// [B, T, heads * head_dim] to [B, T, heads, head_dim].
Tensor SplitHeads(const Tensor& x, int64_t head_dim) {
  // Not -1, which is undefined for a tensor without elements.
  return View(x, {x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

const LlamaConfig& Checked(const LlamaConfig& config) {
  CH_CHECK_OK(config.Validate());
  return config;
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, RotaryTable& rotary,
                               int64_t window)
    : head_dim_(config.head_dim),
      rotary_(rotary),
      q_proj_(Make<Linear>("q_proj", QueryProjection(config))),
      k_proj_(Make<Linear>("k_proj", KeyProjection(config))),
      v_proj_(Make<Linear>("v_proj", KeyProjection(config))),
      o_proj_(Make<Linear>("o_proj",
                           Projection(config, config.heads * config.head_dim,
                                      config.dim, config.o_bias))),
      window_(window) {
  if (!config.qk_norm) return;
  q_norm_ = &Make<RmsNorm>("q_norm", config.head_dim, config.rms_norm_eps);
  k_norm_ = &Make<RmsNorm>("k_norm", config.head_dim, config.rms_norm_eps);
}

TensorList LlamaAttention::ForwardImpl(TensorSpan inputs) {
  const Tensor& x = inputs[0];
  Tensor q = SplitHeads(q_proj_.Forward(x), head_dim_);
  Tensor k = SplitHeads(k_proj_.Forward(x), head_dim_);
  const Tensor v = SplitHeads(v_proj_.Forward(x), head_dim_);
  if (q_norm_ != nullptr) q = q_norm_->Forward(q);
  if (k_norm_ != nullptr) k = k_norm_->Forward(k);
  const int64_t length = q.size(1);
  AttentionOptions options = {.causal = true, .window = window_};
  Tensor heads;
  if (cache_ == nullptr) {
    Tensor cos = rotary_.Cos(length);
    Tensor sin = rotary_.Sin(length);
    if (inputs.size() > 1) {
      options.key_ranges = inputs[1];
      cos = crosshatch::Embedding(inputs[2], cos);
      sin = crosshatch::Embedding(inputs[2], sin);
    }
    heads =
        Attention(ApplyRope(q, cos, sin), ApplyRope(k, cos, sin), v, options);
  } else {
    const int64_t begin = cache_->length();
    const auto rows = [&](const Tensor& table) {
      return Slice(table, 0, begin, begin + length);
    };
    const Tensor cos = rows(rotary_.Cos(cache_->capacity()));
    const Tensor sin = rows(rotary_.Sin(cache_->capacity()));
    const KvCache::Entry all =
        cache_->Append(index_, ApplyRope(k, cos, sin), v);
    heads = Attention(ApplyRope(q, cos, sin), all.keys, all.values, options);
  }
  return {o_proj_.Forward(
      View(heads, {heads.size(0), heads.size(1), heads.size(2) * head_dim_}))};
}

LlamaMlp::LlamaMlp(const LlamaConfig& c)
    : gate_proj_(
          Make<Linear>("gate_proj", Projection(c, c.dim, c.ffn, c.mlp_bias))),
      up_proj_(
          Make<Linear>("up_proj", Projection(c, c.dim, c.ffn, c.mlp_bias))),
      down_proj_(
          Make<Linear>("down_proj", Projection(c, c.ffn, c.dim, c.mlp_bias))) {}

TensorList LlamaMlp::ForwardImpl(TensorSpan inputs) {
  const Tensor& x = inputs[0];
  return {
      down_proj_.Forward(SwiGlu(gate_proj_.Forward(x), up_proj_.Forward(x)))};
}

LlamaBlock::LlamaBlock(const LlamaConfig& config, RotaryTable& rotary,
                       int64_t layer)
    : input_layernorm_(
          Make<RmsNorm>("input_layernorm", config.dim, config.rms_norm_eps)),
      self_attn_(Make<LlamaAttention>("self_attn", config, rotary,
                                      config.WindowOf(layer))),
      post_attention_layernorm_(Make<RmsNorm>("post_attention_layernorm",
                                              config.dim, config.rms_norm_eps)),
      mlp_(Make<LlamaMlp>("mlp", config)) {}

TensorList LlamaBlock::ForwardImpl(TensorSpan inputs) {
  const Tensor& x = inputs[0];
  TensorList of_attention(inputs.begin(), inputs.end());
  of_attention[0] = input_layernorm_.Forward(x);
  const Tensor attended = Add(x, self_attn_.Call(std::move(of_attention))[0]);
  return {
      Add(attended, mlp_.Forward(post_attention_layernorm_.Forward(attended)))};
}

Llama::Llama(const LlamaConfig& config, Device device)
    : config_(Checked(config).Resolved()),
      rotary_(config_.head_dim, config_.rope_theta, config_.rope_scaling),
      embed_tokens_(Make<Embedding>("embed_tokens", config_.vocab, config_.dim,
                                    config_.initializer_stddev)),
      blocks_(MakeBlocks()),
      norm_(Make<RmsNorm>("norm", config_.dim, config_.rms_norm_eps)),
      lm_head_(config_.tied_embeddings
                   ? Make<Linear>("lm_head", embed_tokens_.weight())
                   : Make<Linear>("lm_head",
                                  Projection(config_, config_.dim,
                                             config_.vocab, /*bias=*/false))) {
  NamedParameters();
  if (!device.is_meta()) {
    CH_CHECK(device == RankContext::Current().device())
        << "llama: made on " << device << " by a rank on "
        << RankContext::Current().device();
    CH_CHECK_OK(Materialize({}));
  }
}

std::vector<LlamaBlock*> Llama::MakeBlocks() {
  std::vector<LlamaBlock*> blocks;
  for (int64_t i = 0; i < config_.layers; ++i) {
    blocks.push_back(
        &Make<LlamaBlock>(absl::StrCat("layers.", i), config_, rotary_, i));
  }
  return blocks;
}

TensorList Llama::ForwardImpl(TensorSpan inputs) {
  CH_CHECK(inputs.size() == 1 || inputs.size() == 3)
      << "llama: " << inputs.size()
      << " inputs; it takes tokens, or tokens, keys and positions of packed "
         "documents";
  CH_CHECK_EQ(inputs[0].ndim(), 2)
      << "llama: tokens " << inputs[0].Describe() << " are not [B, T]";
  CH_CHECK(inputs.size() == 1 || cache_ == nullptr)
      << "llama: packed documents with a cache, which holds one sequence a row";
  if (cache_ != nullptr) cache_->CheckRoom(inputs[0].size(1));
  TensorList of_block(inputs.begin(), inputs.end());
  of_block[0] = embed_tokens_.Forward(inputs[0]);
  for (LlamaBlock* block : blocks_) of_block[0] = block->Call(of_block)[0];
  if (cache_ != nullptr) cache_->Advance(inputs[0].size(1));
  return {lm_head_.Forward(norm_.Forward(of_block[0]))};
}

void Llama::set_cache(KvCache* cache) {
  // The cached keys were rotated by the frequencies of their sequence length. A
  // longer sequence may have others.
  const RopeScaling& rope = config_.rope_scaling;
  CH_CHECK(cache == nullptr || !rope.DependsOnLength() ||
           cache->capacity() <= rope.original_positions)
      << "llama: a cache of " << cache->capacity()
      << " positions, where rotary frequencies depend on the length beyond "
      << rope.original_positions
      << " (dynamic and longrope scaling); use a smaller one, or none";
  cache_ = cache;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->attention().set_cache(cache, i);
  }
}

}  // namespace crosshatch::nn
