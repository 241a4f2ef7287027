// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_CHECK_FLOWS_H_
#define CROSSHATCH_TP_CHECK_FLOWS_H_

/// \file
/// The check of a plan before anything is changed: what one module hands out,
/// the next can take.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "crosshatch/tp/styled_module.h"

namespace crosshatch::tp {

/// \param modules all of the tree, parents before their children
/// \param flows ParallelizeOptions::flows
/// \param replicate_rest whether modules without a style are replicated, and
///     take what is plain as equal on all ranks
/// \error kInvalidArgument as ParallelizeModule says, for `flows` and for what
///     modules tell of themselves (nn::TellsFlows). Of the latter a module
///     without a style is no error, since another plan may give it one.
absl::Status CheckFlows(
    absl::Span<const StyledModule> modules,
    const std::vector<std::pair<std::string, std::string>>& flows,
    bool replicate_rest);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_CHECK_FLOWS_H_
