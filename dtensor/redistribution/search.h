// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_

/// \file
/// The search for plans that are lighter than the obvious ones.

#include <cstdint>
#include <optional>

#include "crosshatch/dtensor/redistribution/problem.h"

namespace crosshatch {

/// More layouts than this are not searched. Those of tensors of up to 7 dims on
/// two mesh axes and of up to 2 dims on three are fewer.
inline constexpr int kMostLayoutsSearched = 128;
/// After so many steps between layouts were looked at, each counted as the
/// ranks of the mesh, a search without a bound on memory gives up: a plan
/// takes milliseconds on any mesh. Up to 16 ranks it never does.
inline constexpr int64_t kMostWorkOfSearch = int64_t{1} << 18;

/// The lightest of all sequences of steps that weigh less than `limit` and keep
/// to the bound on memory; nullopt if there are none, too many layouts, or too
/// much work.
///
/// The sequences go through all layouts in which a mesh axis splits any dim, in
/// any order with the others, replicates, or is partial as it is at one of the
/// ends: summands that both ends have stay apart, and zeros are not added only
/// to save a collective. A best-first search, in which the lower bound on what
/// is left to do leaves out what cannot win.
std::optional<RedistributePath> SearchAllLayouts(
    const RedistributeProblem& problem, int64_t limit);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_SEARCH_H_
