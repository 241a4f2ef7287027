// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_PLAN_TEXT_H_
#define CROSSHATCH_TP_PLAN_TEXT_H_

/// \file
/// Plans for tensor parallelism as text: what train_lm --plan reads.
///
///     # Attention: heads are split, positions gathered before.
///     layers.*.self_attn             PrepareModuleInput input=S(1) desired=R
///     layers.*.self_attn.[qkv]_proj  ColwiseParallel
///     layers.*.self_attn.o_proj      RowwiseParallel output=S(1)
///
/// A line is a pattern of modules' names (parallelize_module.h; "." is the
/// root), a style and its options, with blanks between. "#" begins a comment,
/// and a line may be empty. Styles are named as the functions of
/// parallel_style.h that make them, options as the fields of what these take
/// (PrepareModuleInputOutput's as PlanStyles says):
/// "name=layout", or the name alone for one that is yes or no. A layout is R,
/// S(dim) or P(op); dims may count from the end. docs/training.md lists them.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::tp {

/// \param name of the text, to begin messages with: a file's.
/// \param most_dims of the activations that the plan is for; 0: any number. A
///     dim that none of them has would stop the first forward.
/// \error kInvalidArgument naming the line, what is wrong there and what would
///     be right; for a text without a plan.
absl::StatusOr<ParallelPlan> ParsePlan(absl::string_view text,
                                       const std::string& name,
                                       int most_dims = 0);

/// A line for each style, with the options that it takes.
std::vector<std::string> PlanStyles();

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PLAN_TEXT_H_
