// SPDX-License-Identifier: Apache-2.0
#ifndef CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_
#define CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_

/// \file
/// Makes distributed tensors in any layout from dense ones for tests, and
/// compares them with dense ones.

#include <functional>
#include <initializer_list>
#include <source_location>
#include <string>
#include <vector>

#include "crosshatch/comm/world.h"
#include "crosshatch/dtensor/layout/layout.h"
#include "crosshatch/mesh/device_mesh.h"
#include "crosshatch/tensor/tensor.h"
#include "crosshatch/testing/ranks.h"

namespace crosshatch {

/// Returns the layout of `ndim` dims that replicates.
Layout Whole(const DeviceMesh& mesh, int ndim);
/// Returns the layout that splits dim 0 by axis 0.
Layout Rows(const DeviceMesh& mesh, int ndim = 2);
/// Returns the layout of pending sums along axis 0.
Layout Sums(const DeviceMesh& mesh, int ndim = 2);

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

/// Returns the bytes that this rank has received so far.
int64_t BytesReceived(World& world);

/// Expects that `body` on the ranks of a mesh fails a check that matches
/// `message`.
void ExpectDeathOn(
    const MeshAxes& axes, const std::string& message,
    const std::function<void(const DeviceMesh&)>& body,
    const std::source_location& where = std::source_location::current());

/// Runs `body` on meshes of these shapes, one after another.
template <typename Body>
void OnMeshes(
    std::initializer_list<std::vector<int>> shapes, const Body& body,
    const std::source_location& where = std::source_location::current()) {
  for (const std::vector<int>& shape : shapes) OnMesh(shape, body, {}, where);
}

}  // namespace crosshatch

#endif  // CROSSHATCH_DTENSOR_DTENSOR_TESTUTIL_H_
