// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_BATCH_H_
#define CROSSHATCH_TESTING_BATCH_H_

/// \file
/// Data for tests that compare a mesh with one rank bit for bit. Sums of small
/// integers do not depend on the order.

#include <cstdint>

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Fills a tensor with -1, 0 or 1, by index and `salt`.
Tensor SmallIntegers(const Shape& sizes, int64_t salt);

/// Returns the rows [.., dim] of rank `rank` of `size` in batch `salt`. A batch
/// has five distinct rows, which no mesh of the tests divides, so ranks compute
/// different results.
Tensor BatchOf(int rank, int size, int64_t salt, int64_t dim = 5);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_BATCH_H_
