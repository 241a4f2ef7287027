// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/llama_plan.h"

namespace crosshatch::tp {

ParallelPlan LlamaPlan() {
  // Between blocks activations are split by position (dim 1). Attention and MLP
  // gather them once for all their projections.
  const Style by_position = SequenceParallel(/*sequence_dim=*/1);
  const Style gather_positions =
      PrepareModuleInput({.input = Shard(1), .desired = Replicate()});
  const Style split_outputs = ColwiseParallel();
  const Style split_inputs = RowwiseParallel({.output = Shard(1)});
  return {
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
}

}  // namespace crosshatch::tp
