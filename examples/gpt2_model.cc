// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/examples/gpt2_model.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/fsdp/fully_shard.h"
#include "crosshatch/tensor/creation.h"
#include "crosshatch/tensor/ops/ops.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::examples {
namespace {

Tensor SplitHeads(const Tensor& x, int64_t head_dim) {
  return View(x, {x.size(0), x.size(1), x.size(2) / head_dim, head_dim});
}

}  // namespace

Gpt2Attention::Gpt2Attention(const Gpt2Config& config)
    : head_dim_(config.head_dim()),
      q_(Make<nn::Linear>("q", config.dim, config.dim,
                          nn::LinearOptions{.bias = true})),
      k_(Make<nn::Linear>("k", config.dim, config.dim,
                          nn::LinearOptions{.bias = true})),
      v_(Make<nn::Linear>("v", config.dim, config.dim,
                          nn::LinearOptions{.bias = true})),
      c_proj_(Make<nn::Linear>("c_proj", config.dim, config.dim,
                               nn::LinearOptions{.bias = true})) {}

TensorList Gpt2Attention::ForwardImpl(TensorSpan inputs) {
  const Tensor& x = inputs[0];
  const Tensor heads =
      CausalAttention(SplitHeads(q_.Forward(x), head_dim_),
                      SplitHeads(k_.Forward(x), head_dim_),
                      SplitHeads(v_.Forward(x), head_dim_),
                      1 / std::sqrt(static_cast<double>(head_dim_)));
  return {c_proj_.Forward(
      View(heads, {heads.size(0), heads.size(1), heads.size(2) * head_dim_}))};
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config)
    : c_fc_(Make<nn::Linear>("c_fc", config.dim, 4 * config.dim,
                             nn::LinearOptions{.bias = true})),
      c_proj_(Make<nn::Linear>("c_proj", 4 * config.dim, config.dim,
                               nn::LinearOptions{.bias = true})) {}

TensorList Gpt2Mlp::ForwardImpl(TensorSpan inputs) {
  return {c_proj_.Forward(Gelu(c_fc_.Forward(inputs[0])))};
}

Gpt2Block::Gpt2Block(const Gpt2Config& config)
    : ln_1_(Make<nn::LayerNorm>("ln_1", config.dim)),
      attn_(Make<Gpt2Attention>("attn", config)),
      ln_2_(Make<nn::LayerNorm>("ln_2", config.dim)),
      mlp_(Make<Gpt2Mlp>("mlp", config)) {}

TensorList Gpt2Block::ForwardImpl(TensorSpan inputs) {
  const Tensor x = Add(inputs[0], attn_.Forward(ln_1_.Forward(inputs[0])));
  return {Add(x, mlp_.Forward(ln_2_.Forward(x)))};
}

Gpt2::Gpt2(const Gpt2Config& config)
    : config_(config),
      wte_(Make<nn::Embedding>("wte", config.vocab, config.dim)),
      wpe_(Make<nn::Embedding>("wpe", config.positions, config.dim)),
      h_(Make<nn::ModuleList<Gpt2Block>>("h")),
      ln_f_(Make<nn::LayerNorm>("ln_f", config.dim)),
      lm_head_(Make<nn::Linear>("lm_head", wte_.weight())) {
  for (int64_t i = 0; i < config.layers; ++i) h_.Add(config);
}

TensorList Gpt2::ForwardImpl(TensorSpan inputs) {
  const Tensor& tokens = inputs[0];
  Tensor x =
      Add(wte_.Forward(tokens), wpe_.Forward(Arange(tokens.size(1), kInt32)));
  for (Gpt2Block& block : h_) x = block.Forward(x);
  return {lm_head_.Forward(ln_f_.Forward(x))};
}

// [names]
checkpoint::WeightNames Gpt2Names() {
  constexpr bool kTransposed = true;
  return {
      .rules =
          {
              {"h.*.attn.q.*", "transformer.h.*.attn.c_attn.*", 0, kTransposed},
              {"h.*.attn.k.*", "transformer.h.*.attn.c_attn.*", 1, kTransposed},
              {"h.*.attn.v.*", "transformer.h.*.attn.c_attn.*", 2, kTransposed},
              {"h.*.attn.c_proj.*", "transformer.h.*.attn.c_proj.*", 0,
               kTransposed},
              {"h.*.mlp.*", "transformer.h.*.mlp.*", 0, kTransposed},
              {"*", "transformer.*"},
          },
      .copies = {{"lm_head.weight", "transformer.wte.weight"}},
      // Masks that some versions store.
      .ignored = {"transformer.h.*.attn.bias",
                  "transformer.h.*.attn.masked_bias"}};
}
// [/names]

std::string Gpt2ConfigText(const Gpt2Config& config) {
  return absl::StrFormat(
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
 "n_embd": %d, "n_layer": %d, "n_head": %d, "vocab_size": %d,
 "n_positions": %d, "activation_function": "gelu_new",
 "bos_token_id": null, "eos_token_id": null}
)",
      config.dim, config.layers, config.heads, config.vocab, config.positions);
}

// [parallelize]
absl::Status ParallelizeGpt2(Gpt2& model, const DeviceMesh& mesh) {
  CH_ASSIGN_OR_RETURN(const DeviceMesh tp, mesh.Slice("tp"));
  CH_ASSIGN_OR_RETURN(const DeviceMesh fsdp, mesh.Slice("fsdp"));
  // Between blocks, activations are sharded by position: dim 1 of [B, T, dim],
  // and dim 0 of the position embeddings.
  const tp::Style by_position = tp::SequenceParallel(1);
  const tp::Style gather =
      tp::PrepareModuleInput({.input = Shard(1), .desired = Replicate()});
  const tp::Style colwise = tp::ColwiseParallel();
  const tp::Style rowwise = tp::RowwiseParallel({.output = Shard(1)});
  const int64_t head_dim = model.config().head_dim();  // Heads stay whole.
  CH_RETURN_IF_ERROR(tp::ParallelizeModule(
      model, tp,
      {{"wte", rowwise},
       {"wpe", tp::RowwiseParallel({.output = Shard(0)})},
       {"h.*.ln_?", by_position},
       {"h.*.attn", gather},
       {"h.*.attn.[qkv]", tp::ColwiseParallel({.unit = head_dim})},
       {"h.*.attn.c_proj",
        tp::RowwiseParallel({.output = Shard(1), .unit = head_dim})},
       {"h.*.mlp", gather},
       {"h.*.mlp.c_fc", colwise},
       {"h.*.mlp.c_proj", rowwise},
       {"ln_f", by_position},
       {"lm_head", colwise}}));
  for (Gpt2Block& block : model.blocks()) {
    CH_RETURN_IF_ERROR(fsdp::FullyShard(block, fsdp));
  }
  return fsdp::FullyShard(model, fsdp);
}
// [/parallelize]

}  // namespace crosshatch::examples
