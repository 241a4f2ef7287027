// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_COVERING_ARRAY_H_
#define CROSSHATCH_TESTS_COVERING_ARRAY_H_

/// \file
/// Covering arrays: few combinations of options in which any two options meet
/// in every pair of their values.

#include <functional>
#include <string>
#include <vector>

namespace crosshatch {

/// An option and the names of its values.
struct TestedOption {
  std::string name;
  std::vector<std::string> values;
};

/// By option: the index of a value.
using Combination = std::vector<int>;

/// Whether value `va` of option `a` may meet value `vb` of option `b`, a < b.
using MayMeet = std::function<bool(int a, int va, int b, int vb)>;

/// Combinations that cover all pairs that may meet. Greedy: each begins with
/// the first pair that is missing; then each option in turn takes the value
/// that adds most. For every pair there must be values of the other options
/// that may meet it and one another, found in that way.
std::vector<Combination> CoverAllPairs(const std::vector<TestedOption>& options,
                                       const MayMeet& may_meet);

/// "mesh fsdp:2, prefetch 1, ..."
std::string Describe(const std::vector<TestedOption>& options,
                     const Combination& combination);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_COVERING_ARRAY_H_
