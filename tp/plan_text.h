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
/// A line is a pattern of module names (parallelize_module.h; "." is the root),
/// a style and its options, separated by blanks. "#" begins a comment; lines
/// may be empty. Styles and options have the names of the functions and fields
/// of parallel_style.h (see PlanStyles): "name=layout", "name=count", or the
/// name alone for a flag. A layout is R, S(dim) or P(op); negative dims count
/// from the end. docs/training.md lists all styles.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "crosshatch/tp/parallelize_module.h"

namespace crosshatch::tp {

/// Parses a plan.
/// \param name the name of the text for messages, e.g. that of its file.
/// \param most_dims the maximal number of dims of activations, to check dims
///     by; 0: unlimited.
/// \error kInvalidArgument naming the line, the mistake and the alternatives;
///     for a text without a plan.
absl::StatusOr<ParallelPlan> ParsePlan(absl::string_view text,
                                       const std::string& name,
                                       int most_dims = 0);

/// Returns a line for each style with its options.
std::vector<std::string> PlanStyles();

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_PLAN_TEXT_H_
