// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_NEAR_H_
#define CROSSHATCH_TESTING_NEAR_H_

/// \file
/// Compares a mesh's results with one rank's, if sums have different orders.

#include <vector>

namespace crosshatch {

/// The elements of several tensors, row-major.
using Values = std::vector<std::vector<float>>;

/// Checks (expect.h) that `got` has the sizes of `expected`. Each element may
/// have an error of `roundings` units of 2^-24 of its tensor's largest absolute
/// value.
void ExpectNear(const Values& got, const Values& expected, double roundings);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_NEAR_H_
