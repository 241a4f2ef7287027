// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/tp/llama_plan.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "crosshatch/base/check.h"
#include "crosshatch/tp/plan_text.h"

namespace crosshatch::tp {
namespace {

// $0: the unit of query heads; $1: that of key and value heads.
constexpr char kPlan[] =
    R"(embed_tokens                       RowwiseParallel output=S(1)
# Between blocks activations are split by position (dim 1). Attention and MLP
# gather them once for all their projections.
layers.*.input_layernorm           SequenceParallel sequence_dim=1
layers.*.self_attn                 PrepareModuleInput input=S(1) desired=R
layers.*.self_attn.q_proj          ColwiseParallel $0
layers.*.self_attn.[kv]_proj       ColwiseParallel $1
layers.*.self_attn.o_proj          RowwiseParallel output=S(1) $0
layers.*.post_attention_layernorm  SequenceParallel sequence_dim=1
layers.*.mlp                       PrepareModuleInput input=S(1) desired=R
layers.*.mlp.gate_proj             ColwiseParallel
layers.*.mlp.up_proj               ColwiseParallel
layers.*.mlp.down_proj             RowwiseParallel output=S(1)
norm                               SequenceParallel sequence_dim=1
lm_head                            ColwiseParallel
)";

constexpr char kNormsOfHeads[] =
    R"(# Queries and keys are [B, T, heads, head_dim], each rank has its own heads.
layers.*.self_attn.[qk]_norm       SequenceParallel sequence_dim=2
)";

}  // namespace

std::string LlamaPlanText(const nn::LlamaConfig& config) {
  const nn::LlamaConfig of = config.Resolved();
  // Keep the query heads of a key head on one rank if there are enough key
  // heads.
  const std::string queries = absl::StrCat(
      "unit=", of.heads / of.kv_heads * of.head_dim, " subunit=", of.head_dim);
  const std::string keys =
      absl::StrCat("unit=", of.head_dim, " query_heads=", of.heads);
  return absl::StrCat(absl::Substitute(kPlan, queries, keys),
                      of.qk_norm ? kNormsOfHeads : "");
}

ParallelPlan LlamaPlan(const nn::LlamaConfig& config) {
  const absl::StatusOr<ParallelPlan> plan =
      ParsePlan(LlamaPlanText(config), "the plan for Llama");
  CH_CHECK_OK(plan.status());
  return *plan;
}

}  // namespace crosshatch::tp
