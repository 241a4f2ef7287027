// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_FSDP_PAIRWISE_TESTUTIL_H_
#define CROSSHATCH_TESTS_FSDP_PAIRWISE_TESTUTIL_H_

/// \file
/// Every two options of FSDP in every pair of their values, on every mesh.
/// Each combination is an FsdpScript.
///
/// Weights and inputs are -1, 0 or 1, so that sums are exact in every dtype and
/// order: the largest number is 97 in the forward and 27 in the gradient of a
/// row. The rows of a rank and the loss scale keep that below 256, where
/// bfloat16 has every integer. Only a division by 3 rounds, by 2^-24 of the
/// gradient per backward.

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "crosshatch/tests/fsdp_script.h"

namespace crosshatch {

/// Two options, the first before the second, and their values.
using OptionPair = std::tuple<int, int, int, int>;

/// Returns the pairs of values that are compatible.
std::set<OptionPair> CompatiblePairs();
/// Returns the pairs of PairwiseCases.
std::set<OptionPair> CoveredPairs();

struct PairwiseCase {
  std::string name;  ///< "mesh fsdp:2, prefetch 1, ..."
  FsdpScript script;
};
std::vector<PairwiseCase> PairwiseCases();

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_FSDP_PAIRWISE_TESTUTIL_H_
