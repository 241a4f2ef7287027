// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_

/// \file
/// Makes distributed tensors in any layout from dense ones for tests, and
/// compares them with dense ones.

#include <string>

#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"

namespace crosshatch {

/// \returns the layout of `ndim` dims that splits nothing.
Layout Whole(const DeviceMesh& mesh, int ndim);

/// Draws small whole numbers, others for other seeds, because sums of products
/// of them are exact.
Tensor Numbers(ShapeView sizes, int seed, DType dtype = kFloat32);
/// Draws numbers between -1 and 1.
Tensor Fractions(ShapeView sizes, int seed);

/// Lays `dense` out in `layout`, as a leaf. Where reductions are pending the
/// operands differ from rank to rank, and are whole if `dense` is.
Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout);

/// \returns a copy of `x` whose gradient reaches x in the layout `gradient`,
/// whatever layout the ops that read the copy give it.
Tensor WithGradientIn(const Tensor& x, const Layout& gradient);

/// \returns what is wrong with `actual` (plain or distributed) beside `dense`;
/// empty if nothing is. Elements may differ by `tolerance` times the larger of
/// 1 and their size.
std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance = 0);

/// Checks (testing/expect.h) that `y`, made of the leaf `x` without a change of
/// values, passes gradients on: of the sum of its cubes the first are 3 x^2,
/// and of the sum of these the second are 6 x. `dense` is the whole of both.
void ExpectGradientsThrough(const Tensor& x, const Tensor& y,
                            const Tensor& dense);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_
