// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTS_COVERING_ARRAY_H_
#define CROSSHATCH_TESTS_COVERING_ARRAY_H_

/// \file
/// Covering arrays: few combinations of options that contain every pair of
/// values of any two options.

#include <functional>
#include <string>
#include <vector>

namespace crosshatch {

struct TestedOption {
  std::string name;
  std::vector<std::string> values;
};

using Combination = std::vector<int>;

/// Returns whether value `va` of option `a` is compatible with value `vb` of
/// option `b`, for a < b.
using MayMeet = std::function<bool(int a, int va, int b, int vb)>;

/// Returns combinations that cover all compatible pairs. A greedy search begins
/// each with the first missing pair, then gives each option in turn the value
/// that adds most pairs. For every compatible pair that search must find
/// compatible values of the other options.
std::vector<Combination> CoverAllPairs(const std::vector<TestedOption>& options,
                                       const MayMeet& may_meet);

/// Returns text such as "mesh fsdp:2, prefetch 1, ..."
std::string Describe(const std::vector<TestedOption>& options,
                     const Combination& combination);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTS_COVERING_ARRAY_H_
