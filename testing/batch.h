// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_TESTING_BATCH_H_
#define CROSSHATCH_TESTING_BATCH_H_

/// \file
/// Makes data for tests that compare what a mesh computes with what one rank
/// computes, bit for bit: sums of small integers are the same in any order.

#include <cstdint>

#include "crosshatch/tensor/shape.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Fills a tensor with -1, 0 or 1, by index and `salt`.
Tensor SmallIntegers(const Shape& sizes, int64_t salt);

/// \returns the rows [.., dim] that rank `rank` of `size` takes of batch
/// `salt`. There are five in all, which no mesh of the tests divides, and they
/// differ, so that what one rank computes is not what another does.
Tensor BatchOf(int rank, int size, int64_t salt, int64_t dim = 5);

}  // namespace crosshatch

#endif  // CROSSHATCH_TESTING_BATCH_H_
