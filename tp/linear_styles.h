// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TP_LINEAR_STYLES_H_
#define CROSSHATCH_TP_LINEAR_STYLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "crosshatch/nn/module.h"
#include "crosshatch/tp/parallel_style.h"

namespace crosshatch::tp {

/// A module of the tree and its style in the plan, or null.
struct StyledModule {
  nn::NamedModule named;
  Style style = nullptr;
  std::string pattern = "";  ///< The one that matched.
};

/// Checks the styles of an attention's projections against each other. If
/// ColwiseOptions::query_heads gives each of `ranks` a replica of one key head
/// and outputs are local, each rank needs the query heads that read this key
/// head.
/// \error kInvalidArgument naming the entries of keys and of queries, or of the
///     projection back.
absl::Status CheckLocalHeads(const std::vector<StyledModule>& modules,
                             int ranks);

}  // namespace crosshatch::tp

#endif  // CROSSHATCH_TP_LINEAR_STYLES_H_
