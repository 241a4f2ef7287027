// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_

/// \file
/// For tests of distributed tensors: tensors in any layout made from dense
/// ones, and comparison with dense ones.

#include <string>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Small whole numbers, different for different seeds: sums of products of them
/// are exact.
Tensor Numbers(ShapeView sizes, int seed, DType dtype = kFloat32);
/// Numbers between -1 and 1.
Tensor Fractions(ShapeView sizes, int seed);

/// `dense` in `layout`, a leaf. Where reductions are pending the operands
/// differ from rank to rank, and are whole if `dense` is.
Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout);

/// What is wrong with `actual` (plain or distributed) beside `dense`; empty if
/// nothing. Elements may differ by `tolerance` times the larger of 1 and their
/// size.
std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
