// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_LLAMA_PLAN_H_
#define CROSSHATCH_TP_LLAMA_PLAN_H_

#include <string>

#include "crosshatch/nn/models/llama_config.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::tp {

/// Returns the plan for nn::Llama of `config`: projections split by heads and
/// inner features, the embedding and the output by vocabulary, the residual
/// stream and the norms by position. The logits stay split by vocabulary
/// (Shard(-1)), as CrossEntropy takes them: no rank ever holds a row of them.
ParallelPlan LlamaPlan(const nn::LlamaConfig& config);

/// Returns the plan as text (plan_text.h), to print or change.
std::string LlamaPlanText(const nn::LlamaConfig& config);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_LLAMA_PLAN_H_
