// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_NEAR_H_
#define CROSSHATCH_TESTING_NEAR_H_

/// \file
/// Compares what a mesh computes with what one rank computes where sums come in
/// other orders.

#include <vector>

namespace crosshatch {

/// Of several tensors the elements, row-major.
using Values = std::vector<std::vector<float>>;

/// Checks (expect.h) that `got` has the sizes of `expected` and that each
/// element is off by at most `roundings` units of 2^-24 of the largest absolute
/// value that is expected of its tensor.
void ExpectNear(const Values& got, const Values& expected, double roundings);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_NEAR_H_
