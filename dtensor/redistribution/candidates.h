// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_CANDIDATES_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_CANDIDATES_H_

/// \file
/// The plans that are best as a rule, at little cost.

#include <optional>

#include "crosshatch/dtensor/redistribution/problem.h"

namespace crosshatch {

/// The lightest of a few plans of one form; of equal ones, the first:
///
/// - Reductions come first: over all axes at once or some after others, the
///   result split as the destination is, not at all or along one dim, where
///   what replicas hold may be sliced before.
/// - Then one exchange; where nothing is to be reduced or to become partial,
///   there is nothing lighter.
/// - Values become summands last.
///
/// nullopt where they all need more elements than allowed.
std::optional<RedistributePath> LightestCandidate(
    const RedistributeProblem& problem);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_CANDIDATES_H_
