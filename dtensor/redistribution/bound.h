// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_REDISTRIBUTION_BOUND_H_
#define CROSSHATCH_DTENSOR_REDISTRIBUTION_BOUND_H_

/// \file
/// What no redistribution can do without, to judge plans by.

#include <cstdint>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/tensor/shape.h"

namespace crosshatch {

/// The elements that some rank receives from others in any algorithm that
/// brings a tensor of `shape` from one layout to another of the same mesh:
///
/// - Nothing to reduce: a rank receives what its destination has beyond its
///   source. Ranks that are to hold summands may share that among them.
/// - A reduction of g summands: a rank receives each element of its destination
///   at least once. And an element that n ranks are to have takes at least
///   g - 1 messages until the first rank has it all, and n - 1 after that; some
///   rank receives the average.
///
/// Summands over axes that are partial in both layouts alike stay apart.
int64_t RedistributeLowerBound(const Layout& from, const Layout& to,
                               ShapeView shape);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_REDISTRIBUTION_BOUND_H_
