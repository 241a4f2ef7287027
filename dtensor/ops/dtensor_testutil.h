// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_

/// \file
/// Makes distributed tensors in any layout from dense ones for tests, and
/// compares them with dense ones.

#include <string>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// Draws small whole numbers, others for other seeds, because sums of products
/// of them are exact.
Tensor Numbers(ShapeView sizes, int seed, DType dtype = kFloat32);
/// Draws numbers between -1 and 1.
Tensor Fractions(ShapeView sizes, int seed);

/// Lays `dense` out in `layout`, as a leaf. Where reductions are pending the
/// operands differ from rank to rank, and are whole if `dense` is.
Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout);

/// \returns what is wrong with `actual` (plain or distributed) beside `dense`;
/// empty if nothing is. Elements may differ by `tolerance` times the larger of
/// 1 and their size.
std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance = 0);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_OPS_DTENSOR_TESTUTIL_H_
