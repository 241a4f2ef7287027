// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_NN_LAYERS_WIDER_H_
#define CROSSHATCH_NN_LAYERS_WIDER_H_

#include "crosshatch/tensor/dtype.h"

namespace crosshatch::nn {

/// Of two floating-point dtypes the one with more bits, `b` where both have as
/// many: what a layer computes in whose weights are kept in another dtype than
/// what it is given.
inline DType WiderOf(DType a, DType b) { return SizeOf(a) > SizeOf(b) ? a : b; }

}  // namespace crosshatch::nn

#endif  // CROSSHATCH_NN_LAYERS_WIDER_H_
