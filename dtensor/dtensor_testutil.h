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

/// Returns the layout of `ndim` dims that replicates.
Layout Whole(const DeviceMesh& mesh, int ndim);

/// Returns small whole numbers, different for different seeds. Sums of products
/// of them are exact.
Tensor Numbers(ShapeView sizes, int seed, DType dtype = kFloat32);
/// Returns numbers between -1 and 1.
Tensor Fractions(ShapeView sizes, int seed);

/// Distributes `dense` by `layout`, as a leaf. With pending reductions, the
/// operands differ from rank to rank; they are whole numbers if `dense` has
/// whole numbers.
Tensor Spread(const Tensor& dense, const DeviceMesh& mesh,
              const Layout& layout);

/// Returns a copy of `x` whose gradient reaches x in the layout `gradient`,
/// whatever layout the ops that read the copy give it.
Tensor WithGradientIn(const Tensor& x, const Layout& gradient);

/// Returns a description of how `actual` (plain or distributed) differs from
/// `dense`; empty if it does not. Elements may differ by `tolerance` times the
/// larger of 1 and their magnitude.
std::string Differs(const Tensor& actual, const Tensor& dense,
                    double tolerance = 0);

/// Checks (testing/expect.h) that `y`, computed from the leaf `x` without a
/// change of values, propagates gradients: the gradients of the sum of its
/// cubes are 3 x^2, and those of their sum are 6 x. `dense` is the global
/// tensor of both.
void ExpectGradientsThrough(const Tensor& x, const Tensor& y,
                            const Tensor& dense);

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_
