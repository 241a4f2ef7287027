// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/llama_plan.h"

namespace crosshatch::tp {

ParallelPlan LlamaPlan(const nn::LlamaConfig& config) {
  // Between blocks activations are split by position (dim 1). Attention and MLP
  // gather them once for all their projections.
  const Style by_position = SequenceParallel(/*sequence_dim=*/1);
  const Style gather_positions =
      PrepareModuleInput({.input = Shard(1), .desired = Replicate()});
  const Style split_outputs = ColwiseParallel();
  const Style split_inputs = RowwiseParallel({.output = Shard(1)});
  ParallelPlan plan = {
      {"embed_tokens", split_inputs},
      {"layers.*.input_layernorm", by_position},
      {"layers.*.self_attn", gather_positions},
      {"layers.*.self_attn.[qkv]_proj", split_outputs},
      {"layers.*.self_attn.o_proj", split_inputs},
      {"layers.*.post_attention_layernorm", by_position},
      {"layers.*.mlp", gather_positions},
      {"layers.*.mlp.gate_proj", split_outputs},
      {"layers.*.mlp.up_proj", split_outputs},
      {"layers.*.mlp.down_proj", split_inputs},
      {"norm", by_position},
      {"lm_head", split_outputs},
  };
  // Of queries and keys [B, T, heads, head_dim], each rank its own heads.
  if (config.qk_norm) {
    plan.emplace_back("layers.*.self_attn.[qk]_norm",
                      SequenceParallel(/*sequence_dim=*/2));
  }
  return plan;
}

}  // namespace crosshatch::tp
